# SoftRNIC: one target per thing a person does. `make help` lists them.
# CI calls the same targets (.ci/run).

GO       ?= go
BIN      := bin/softrnic
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION)
PREFIX   ?= /usr/local
TIMEOUT  ?= 10m
FUZZTIME ?= 10s
BENCH    ?=

# Tests that need root, or a guest, have targets of their own.
PRIVILEGED := ^Test(Netns|Siw)

.DEFAULT_GOAL := help
.PHONY: help build demo test race lint fuzz bench test-netns test-siw install clean have-go

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

have-go:
	@command -v $(GO) >/dev/null || { \
	  echo "make: no Go toolchain ('$(GO)' is not in PATH)."; \
	  echo "  Debian:    apt-get install golang-go     (1.21 or newer fetches the Go version that go.mod names)"; \
	  echo "  otherwise: install Go 1.26 from https://go.dev/dl/ and add its bin folder to PATH"; \
	  exit 1; } >&2

build: have-go ## build bin/softrnic, static, without cgo
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/softrnic

demo: build ## two RNICs exchange verified Writes, Reads and Sends (over TAPs where it may)
	@scripts/demo-check.sh
	$(BIN) demo $(DEMOFLAGS)

test: have-go ## vet, and every test that needs neither root nor a guest
	$(GO) vet ./...
	$(GO) test -timeout $(TIMEOUT) -skip '$(PRIVILEGED)' ./...

race: have-go ## the same tests under the race detector (needs gcc)
	@command -v gcc >/dev/null || { echo "make race: the race detector needs gcc: apt-get install gcc libc6-dev" >&2; exit 1; }
	CGO_ENABLED=1 $(GO) test -race -short -timeout $(TIMEOUT) -skip '$(PRIVILEGED)' ./...

lint: have-go ## gofmt, vet, staticcheck, and the build for an OS without TAPs
	@files=$$(gofmt -l . ) && if [ -n "$$files" ]; then echo "not gofmt'ed:"; echo "$$files"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	CGO_ENABLED=0 GOOS=darwin $(GO) build ./...
	CGO_ENABLED=0 GOOS=darwin $(GO) vet ./...

fuzz: have-go ## every fuzz target for FUZZTIME (10s) each
	GO='$(GO)' FUZZTIME='$(FUZZTIME)' scripts/fuzz.sh

bench: build ## goodput and round trip beside raw netstack and kernel TCP, in one run (root)
	@scripts/need-root.sh 'make bench'
	$(GO) build -trimpath -o bin/softrnic-bench ./integration/bench
	bin/softrnic-bench $(BENCH)

test-netns: have-go ## the tests with real TAPs and a bridge (root)
	GO='$(GO)' TIMEOUT='$(TIMEOUT)' scripts/test-netns.sh

test-siw: build ## against Linux siw in a QEMU guest, both roles (root)
	GO='$(GO)' TIMEOUT='$(TIMEOUT)' SOFTRNIC='$(CURDIR)/$(BIN)' scripts/test-siw.sh

install: build ## install softrnic in PREFIX/bin (/usr/local)
	install -D -m 0755 $(BIN) $(DESTDIR)$(PREFIX)/bin/softrnic

clean: ## remove what the targets built
	rm -rf bin

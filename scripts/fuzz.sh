#!/bin/bash
# fuzz.sh : runs every fuzz target of the module for FUZZTIME (10s) each; stops at the first that fails.
# A failing input is kept by go under the package's testdata/fuzz: commit it with the fix.
set -eu
GO=${GO:-go} FUZZTIME=${FUZZTIME:-10s}
n=0
for pkg in $($GO list ./...); do
  for target in $($GO test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
    echo "== $pkg $target ($FUZZTIME)"
    $GO test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$pkg"
    n=$((n + 1))
  done
done
echo "fuzz: $n targets"
[ "$n" -gt 0 ]

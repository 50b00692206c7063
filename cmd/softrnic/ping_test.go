package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/capture"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/dissect"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/verbstest"
)

// output collects what a command prints, and lets a test wait for it.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// await waits until the output matches.
func (o *output) await(t testing.TB, pattern string) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(10 * time.Second); !re.MatchString(o.String()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%q did not come, only:\n%s", pattern, o)
		}
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// background runs a server until the test ends, and wants it to end well.
func background(t testing.TB, serve func(ctx context.Context, w io.Writer) error) *output {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, done := &output{}, make(chan error, 1)
	go func() { done <- serve(ctx, out) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the server ended with %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the server does not end")
		}
	})
	out.await(t, "listening on port")
	return out
}

func pinger(size, count int) pingOptions {
	return pingOptions{size: size, count: count, validate: true, rev: 2, wait: 5 * time.Second}
}

var pingAddr = netip.AddrPortFrom(verbstest.AddrB, rpingPort)

// TestPing has several clients at once.
func TestPing(t *testing.T) {
	a, b := verbstest.Net(t, verbstest.Options{})
	out := background(t, func(ctx context.Context, w io.Writer) error {
		return servePing(ctx, b, serveOptions{port: rpingPort}, w)
	})
	var wg sync.WaitGroup
	for _, size := range []int{rpingMin, 64, 1420, 65534, rpingMax} {
		for _, noCRC := range []bool{false, true} {
			wg.Go(func() {
				o := pinger(size, 20)
				o.noCRC = noCRC
				var w bytes.Buffer
				if err := ping(testContext(t), a, pingAddr, o, &w); err != nil {
					t.Errorf("%d octets: %v", size, err)
				}
				if want := fmt.Sprintf("20 rounds of %d octets, all compared: min ", size); !strings.Contains(w.String(), want) {
					t.Errorf("%d octets: %s", size, w.String())
				}
			})
		}
	}
	wg.Wait()
	out.await(t, `(?s)(20 rounds, CRC on.*){10}`) // the server has not asked to do without
}

func TestPingJSON(t *testing.T) {
	a, b := verbstest.Net(t, verbstest.Options{})
	background(t, func(ctx context.Context, w io.Writer) error {
		return servePing(ctx, b, serveOptions{port: rpingPort, noCRC: true, verbose: true}, w)
	})
	o := pinger(100, 3)
	o.noCRC, o.verbose, o.out.json = true, true, true
	var w bytes.Buffer
	if err := ping(testContext(t), a, pingAddr, o, &w); err != nil {
		t.Fatal(err)
	}
	var r pingResult
	if err := json.Unmarshal(w.Bytes(), &r); err != nil {
		t.Fatalf("%s: %v", w.String(), err)
	}
	if r.Rounds != 3 || r.Size != 100 || r.CRC || !r.Validated || r.MinUS <= 0 || r.MaxUS < r.P50US {
		t.Errorf("%+v", r)
	}
}

// TestPingRevision1: no IRD and ORD are announced, and the server Reads anyway.
func TestPingRevision1(t *testing.T) {
	a, b := verbstest.Net(t, verbstest.Options{})
	background(t, func(ctx context.Context, w io.Writer) error {
		return servePing(ctx, b, serveOptions{port: rpingPort}, w)
	})
	o := pinger(64, 2)
	o.rev = 1
	if err := ping(testContext(t), a, pingAddr, o, io.Discard); err != nil {
		t.Error(err)
	}
}

func TestPingRefused(t *testing.T) {
	a, _ := verbstest.Net(t, verbstest.Options{})
	err := ping(testContext(t), a, pingAddr, pinger(64, 1), io.Discard)
	if err == nil || !strings.Contains(err.Error(), pingAddr.String()) || !strings.Contains(err.Error(), "start softrnic serve ping") {
		t.Error(err)
	}
	silent := fmt.Errorf("dial: %w", context.DeadlineExceeded)
	if err := connectError(silent, pingAddr, 3*time.Second, ""); !strings.Contains(err.Error(), pingAddr.String()+" did not answer in 3s") {
		t.Error(err)
	}
}

// TestPingValidate: the server spoils an octet of the second round.
func TestPingValidate(t *testing.T) {
	a, b := verbstest.Net(t, verbstest.Options{})
	spoiled := func(ctx context.Context, w io.Writer) error {
		return serve(ctx, b, serveOptions{port: rpingPort}, &lines{w: w}, "ping", func(ctx context.Context, req *verbs.ConnRequest) (string, error) {
			e, err := newEndpoint(b, rpingMax, false)
			if err != nil {
				return "", err
			}
			defer e.close()
			if _, err := req.Accept(e.qp, verbs.ConnParams{IRD: 1, ORD: 1}); err != nil {
				return "", err
			}
			_, err = e.serve(ctx, func(round int, data []byte) {
				if round == 1 {
					data[30] ^= 0x01
				}
			})
			return "", err
		})
	}
	background(t, spoiled)
	err := ping(testContext(t), a, pingAddr, pinger(64, 3), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "octet 30 of 64") {
		t.Error(err)
	}
	o := pinger(64, 3)
	o.validate = false
	if err := ping(testContext(t), a, pingAddr, o, io.Discard); err != nil {
		t.Error("not compared:", err)
	}
}

// TestServePingBadClient: a client that breaks the protocol is a line of the
// server's, who goes on serving.
func TestServePingBadClient(t *testing.T) {
	a, b := verbstest.Net(t, verbstest.Options{})
	out := background(t, func(ctx context.Context, w io.Writer) error {
		return servePing(ctx, b, serveOptions{port: rpingPort}, w)
	})
	for name, c := range map[string]struct {
		say  []byte
		want string
	}{
		"short":        {[]byte("fifteen octets."), "the peer sent 15 octets"},
		"huge":         {[]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff}, "the peer offers 4294967295 octets"},
		"another STag": {[]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 64}, "STag"},
	} {
		e, err := newEndpoint(a, 64, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.qp.Connect(testContext(t), pingAddr, verbs.ConnParams{IRD: 1, ORD: 1}); err != nil {
			t.Fatal(err)
		}
		copy(e.info.Bytes(), c.say)
		if _, err := e.qp.PostSend(verbs.SendWR{SGL: []verbs.SGE{e.info.SGE(0, len(c.say))}}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-e.qp.Done():
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the server does not end the connection", name)
		}
		if err := e.close(); err != nil {
			t.Error(name, err)
		}
		out.await(t, c.want)
	}
	if err := ping(testContext(t), a, pingAddr, pinger(64, 3), io.Discard); err != nil {
		t.Error("a good client after bad ones:", err)
	}
}

func TestServeOnce(t *testing.T) {
	a, b := verbstest.Net(t, verbstest.Options{})
	out, done := &output{}, make(chan error, 1)
	go func() { done <- servePing(testContext(t), b, serveOptions{port: rpingPort, count: 1}, out) }()
	out.await(t, "listening")
	if err := ping(testContext(t), a, pingAddr, pinger(64, 3), io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRpingCapture compares our ping with what rdma-core's rping put on the wire:
// the text of each round, and the place of it.
func TestRpingCapture(t *testing.T) {
	for _, name := range []string{"siw-rping-crc", "siw-rping-nocrc", "siw-rping-gso", "siw61-rping"} {
		f, err := os.Open("testdata/pcaps/" + name + ".pcap")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := capture.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		var place rpingPlace
		round, checked := 0, 0
		compare := func(r *dissect.Record, payload []byte) {
			want := make([]byte, len(payload))
			pattern(want, round)
			if !bytes.Equal(want, payload) {
				t.Errorf("%s, packet %d, round %d: rping has %q, we %q", name, r.Frame, round, payload, want)
			}
			checked++
		}
		d := dissect.Decoder{Emit: func(r *dissect.Record) error {
			if r.Segment == nil {
				return nil
			}
			payload := r.Wire[2+r.ULPDU-r.Len : 2+r.ULPDU]
			switch r.Opcode {
			case "send":
				if strings.HasSuffix(r.Dst, ":7174") {
					place = parsePlace(payload)
					var again [rpingInfo]byte
					if place.put(again[:]); !bytes.Equal(again[:], payload) {
						t.Errorf("%s, packet %d: %x, we %x", name, r.Frame, payload, again)
					}
				}
			case "read-request":
				if q := r.ReadRequest; q.SrcSTag != uint32(place.stag) || q.SrcTO != place.to || q.Size != place.size {
					t.Errorf("%s, packet %d: the server Reads %+v, the client had said %+v", name, r.Frame, q, place)
				}
			case "read-response":
				compare(r, payload)
			case "write":
				if r.STag != uint32(place.stag) || r.TO != place.to {
					t.Errorf("%s, packet %d: the server Writes to %#x %#x, the client had said %+v", name, r.Frame, r.STag, r.TO, place)
				}
				compare(r, payload)
				round++
			}
			return nil
		}}
		if _, err := d.Decode(r); err != nil {
			t.Fatal(err)
		}
		if checked < 2 {
			t.Errorf("%s: %d texts compared", name, checked)
		}
	}
}

func TestTarget(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1":       "10.0.0.1:7",
		"10.0.0.1:80":    "10.0.0.1:80",
		"fd00::1":        "[fd00::1]:7",
		"[fd00::1]":      "[fd00::1]:7",
		"[fd00::1]:4791": "[fd00::1]:4791",
	} {
		if got, err := target(in, 7); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "host", "host:1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.300", "[fd00::1", "fd00::1]:1"} {
		if got, err := target(in, 7); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", in)) {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/verbstest"
)

var benchAddr = netip.AddrPortFrom(verbstest.AddrB, benchPort)

func benchNet(t *testing.T) (client *verbs.Device, server *output) {
	a, b := verbstest.Net(t, verbstest.Options{})
	return a, background(t, func(ctx context.Context, w io.Writer) error {
		return serveBench(ctx, b, serveOptions{port: benchPort}, w)
	})
}

// TestBench runs each measurement, as a table and as JSON.
func TestBench(t *testing.T) {
	for _, k := range benchKinds {
		t.Run(k.name, func(t *testing.T) {
			a, out := benchNet(t)
			for _, o := range []benchOptions{
				{size: 1, iters: 1, depth: 2},
				{size: 1000, iters: 1001, depth: 2},
				{size: 4096, iters: 500, depth: 64},
				{size: 100000, iters: 100, depth: 7},
				{size: 64, iters: 1, depth: 16, duration: 30 * time.Millisecond},
			} {
				o.kind, o.out.json = k, true
				var w bytes.Buffer
				if err := bench(testContext(t), a, benchAddr, o, &w); err != nil {
					t.Fatalf("%+v: %v\nthe server: %s", o, err, out)
				}
				var r benchResult
				if err := json.Unmarshal(w.Bytes(), &r); err != nil {
					t.Fatalf("%s: %v", w.String(), err)
				}
				if o.duration == 0 && r.Iterations != o.iters || r.Iterations < 1 || r.Op != k.name || r.Size != o.size || !r.CRC || r.EMSS == 0 {
					t.Errorf("%+v: %s", o, w.String())
				}
				if k.lat {
					if !(0 < r.MinUS && r.MinUS <= r.TypicalUS && r.TypicalUS <= r.P99US && r.P99US <= r.P999US && r.P999US <= r.MaxUS && r.Gbps == 0) {
						t.Errorf("%+v: %s", o, w.String())
					}
				} else if !(0 < r.Gbps && r.Gbps <= r.PeakGbps && r.Mpps > 0 && r.MinUS == 0) {
					t.Errorf("%+v: %s", o, w.String())
				}
				o.out.json = false
				w.Reset()
				if err := bench(testContext(t), a, benchAddr, o, &w); err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(w.String(), "\n"); n != 3 || !strings.Contains(w.String(), " #bytes") {
					t.Errorf("%d lines:\n%s", n, w.String())
				}
			}
		})
	}
}

// TestBenchClients has several at once.
func TestBenchClients(t *testing.T) {
	a, _ := benchNet(t)
	var wg sync.WaitGroup
	for _, k := range benchKinds {
		wg.Go(func() {
			if err := bench(testContext(t), a, benchAddr, benchOptions{kind: k, size: 3000, iters: 300, depth: 8}, io.Discard); err != nil {
				t.Errorf("%s: %v", k.name, err)
			}
		})
	}
	wg.Wait()
}

// TestBenchRequests: the server refuses what is no request, and goes on.
func TestBenchRequests(t *testing.T) {
	a, out := benchNet(t)
	good := benchOptions{kind: benchKinds[0], size: 10, iters: 1, depth: 2}
	change := func(at int, b byte) []byte { r := good.request(); r[at] = b; return r }
	for name, private := range map[string][]byte{
		"none":      nil,
		"short":     good.request()[:13],
		"long":      append(good.request(), 0),
		"key":       change(0, 'x'),
		"operation": change(4, 77),
		"size":      change(6, 0xff),
		"depth":     change(10, 0xff),
		"depth 0":   change(13, 0),
	} {
		pd, err := a.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := a.CreateCQ(4)
		if err != nil {
			t.Fatal(err)
		}
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		var no *verbs.RejectedError
		if _, err := qp.Connect(testContext(t), benchAddr, verbs.ConnParams{PrivateData: private}); !errors.As(err, &no) {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(qp.Close(), cq.Close(), pd.Close()); err != nil {
			t.Error(err)
		}
	}
	if err := bench(testContext(t), a, benchAddr, good, io.Discard); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestBenchOther asks a server of another kind.
func TestBenchOther(t *testing.T) {
	a, b := verbstest.Net(t, verbstest.Options{})
	background(t, func(ctx context.Context, w io.Writer) error {
		return servePing(ctx, b, serveOptions{port: benchPort}, w)
	})
	err := bench(testContext(t), a, benchAddr, benchOptions{kind: benchKinds[0], size: 10, iters: 1, depth: 2}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "softrnic serve bench") {
		t.Error(err)
	}
}

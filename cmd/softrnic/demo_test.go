package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// checkDemo wants all three operations to be there and verified.
func checkDemo(t *testing.T, out []byte, path string, mib int) {
	t.Helper()
	var r demoResult
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if !r.Verified || r.Path != path || !r.CRC || len(r.Ops) != 3 {
		t.Fatalf("%s", out)
	}
	sums := map[string]bool{}
	for i, name := range []string{"write", "read", "send"} {
		op := r.Ops[i]
		if op.Op != name || op.Bytes != int64(mib)<<20 || op.Gbps <= 0 || op.P50US <= 0 || op.P99US < op.P50US || len(op.SHA256) != 64 {
			t.Errorf("%+v", op)
		}
		sums[op.SHA256] = true
	}
	if len(sums) != 3 {
		t.Errorf("each operation must move octets of its own: %s", out)
	}
}

func TestDemoMemory(t *testing.T) {
	for _, o := range []demoOptions{{mib: 1, mtu: 9000}, {mib: 17, mtu: 1500}} {
		o.memory, o.out.json = true, true
		var out, errs bytes.Buffer
		if err := demo(testContext(t), o, &out, &errs); err != nil {
			t.Fatalf("%v\n%s", err, errs.String())
		}
		checkDemo(t, out.Bytes(), "memory", o.mib)
		if errs.Len() > 0 {
			t.Errorf("on stderr: %s", errs.String())
		}
	}
}

// TestDemoInterrupted ends it at some moments of its life.
func TestDemoInterrupted(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		defer cancel()
		var out, errs bytes.Buffer
		begin := time.Now()
		err := demo(ctx, demoOptions{mib: 512, mtu: 1500, memory: true}, &out, &errs)
		if !errors.Is(err, errInterrupted) || out.Len() > 0 {
			t.Errorf("after %v: %v, %q", after, err, out.String())
		}
		if took := time.Since(begin); took > 5*time.Second+after {
			t.Errorf("after %v: it took %v to end", after, took)
		}
	}
}

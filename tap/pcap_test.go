package tap_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/softrnic/softrnic/tap"
	"github.com/softrnic/softrnic/tap/taptest"
)

func TestTee(t *testing.T) {
	a, b := taptest.Pipe(taptest.Options{})
	var w bytes.Buffer
	ta := tap.Tee(a, &w)
	one, two := bytes.Repeat([]byte{1}, 60), bytes.Repeat([]byte{2}, 90)
	if _, err := ta.Queues()[0].WriteBatch([]tap.Frame{{Bufs: [][]byte{one[:20], one[20:]}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Queues()[0].WriteBatch([]tap.Frame{{Bufs: [][]byte{two}}}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1000)
	if n, err := ta.Queues()[0].ReadBatch([]tap.Frame{{Bufs: [][]byte{buf[:50], buf[50:]}}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	p := w.Bytes()
	if binary.LittleEndian.Uint32(p) != 0xa1b2c3d4 || binary.LittleEndian.Uint32(p[20:]) != 1 {
		t.Errorf("header %x", p[:24])
	}
	p = p[24:]
	for _, want := range [][]byte{one, two} {
		if n := binary.LittleEndian.Uint32(p[8:]); int(n) != len(want) || !bytes.Equal(p[16:16+n], want) {
			t.Fatalf("record %x, want %x", p[:min(len(p), 100)], want)
		}
		p = p[16+len(want):]
	}
	if len(p) != 0 {
		t.Errorf("%d octets behind the records", len(p))
	}
	// What the device refuses was not sent.
	w.Reset()
	if n, err := ta.Queues()[0].WriteBatch([]tap.Frame{{Bufs: [][]byte{one}}, {Bufs: [][]byte{one[:5]}}, {Bufs: [][]byte{two}}}); n != 1 || err == nil {
		t.Errorf("%d, %v", n, err)
	}
	if w.Len() != 16+len(one) {
		t.Errorf("%d octets noted, want one frame of %d", w.Len(), len(one))
	}
	// A full disk does not stop the device.
	c, _ := taptest.Pipe(taptest.Options{})
	tc := tap.Tee(c, broken{})
	if n, err := tc.Queues()[0].WriteBatch([]tap.Frame{{Bufs: [][]byte{one}}}); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

package taptest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/internal/race"
	"github.com/softrnic/softrnic/tap"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func send(t testing.TB, d tap.Device, h tap.VNetHdr, b ...[]byte) {
	t.Helper()
	if n, err := d.Queues()[0].WriteBatch([]tap.Frame{{Hdr: h, Bufs: b}}); n != 1 || err != nil {
		t.Fatalf("WriteBatch: %d, %v", n, err)
	}
}

// take returns all frames that wait at d.
func take(t testing.TB, d tap.Device) (out [][]byte) {
	t.Helper()
	for {
		buf := make([]byte, tap.MaxFrame)
		f := []tap.Frame{{Bufs: [][]byte{buf[:10], buf[10:]}}}
		n, err := d.Queues()[0].ReadBatch(f)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return out
		}
		out = append(out, buf[:f[0].N])
	}
}

// tcpFrame makes a TCP segment with right lengths and checksums.
func tcpFrame(v6 bool, payload []byte) []byte {
	var b []byte
	if v6 {
		b = make([]byte, 14+40+20, 14+60+len(payload))
		b[12], b[13] = 0x86, 0xdd
		b[14], b[20] = 0x60, 6
	} else {
		b = make([]byte, 14+20+20, 14+40+len(payload))
		b[12] = 8
		b[14], b[20], b[22], b[23] = 0x45, 0x40, 64, 6
	}
	tcp := len(b) - 20
	for i := 26; i < 34; i++ {
		b[i] = byte(i)
	}
	binary.BigEndian.PutUint32(b[tcp+4:], 1000)
	b[tcp+12], b[tcp+13] = 0x50, 0x18
	b = append(b, payload...)
	p, ok := parse(b)
	if !ok {
		panic("not TCP")
	}
	p.finish(b)
	return b
}

// valid says whether a frame's checksums hold, by summing over them.
func valid(b []byte) bool {
	p, ok := parse(b)
	if !ok {
		return false
	}
	var s uint32
	if p.v6 {
		s = sum(0, b[p.ip+8:p.ip+40])
	} else {
		if sum(0, b[p.ip:p.tcp]) != 0xffff {
			return false
		}
		s = sum(0, b[p.ip+12:p.ip+20])
	}
	s += 6 + uint32(len(b)-p.tcp)
	return sum(s&0xffff+s>>16, b[p.tcp:])&0xffff == 0xffff
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

func TestPipe(t *testing.T) {
	a, b := Pipe(Options{Ring: 10})
	for i := range 15 {
		send(t, a, tap.VNetHdr{}, bytes.Repeat([]byte{byte(i)}, 30), []byte("end"))
	}
	got := take(t, b)
	if len(got) != 10 {
		t.Fatalf("%d frames, the ring holds 10", len(got))
	}
	for i, f := range got {
		if len(f) != 33 || f[0] != byte(i) || string(f[30:]) != "end" {
			t.Errorf("frame %d: %x", i, f)
		}
	}
	if got := take(t, a); len(got) != 0 {
		t.Errorf("%d frames came back", len(got))
	}
	for _, f := range []tap.Frame{
		{Bufs: [][]byte{make([]byte, 13)}}, {Bufs: [][]byte{make([]byte, 1519)}},
		{Hdr: tap.VNetHdr{GSOType: 9}, Bufs: [][]byte{make([]byte, 60)}},
	} {
		if _, err := a.Queues()[0].WriteBatch([]tap.Frame{f}); err == nil {
			t.Errorf("a frame of %d octets, GSO %d, was taken", len(f.Bufs[0]), f.Hdr.GSOType)
		}
	}
	c, _ := Pipe(Options{NoOffloads: true})
	if _, err := c.Queues()[0].WriteBatch([]tap.Frame{{Hdr: tap.VNetHdr{Flags: tap.HdrNeedsCsum}, Bufs: [][]byte{make([]byte, 60)}}}); err == nil {
		t.Error("a device without offloads took an unfinished checksum")
	}
	b.Queues()[0].Wake()
	begin := time.Now()
	if err := b.Queues()[0].Wait(time.Minute); err != nil || time.Since(begin) > time.Second {
		t.Errorf("Wake: %v after %v", err, time.Since(begin))
	}
	done := make(chan error)
	go func() {
		for {
			if err := b.Queues()[0].Wait(-1); err != nil {
				done <- err
				return
			}
		}
	}()
	time.Sleep(time.Millisecond)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait: %v", err)
	}
	if err := b.Close(); !errors.Is(err, tap.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

func TestPipeAllocates(t *testing.T) {
	if race.Enabled {
		return
	}
	a, b := Pipe(Options{})
	w := []tap.Frame{{Bufs: [][]byte{make([]byte, 1500)}}}
	r := []tap.Frame{{Bufs: [][]byte{make([]byte, tap.MaxFrame)}}}
	if n := testing.AllocsPerRun(1000, func() {
		a.Queues()[0].WriteBatch(w)
		b.Queues()[0].ReadBatch(r)
	}); n > 0 {
		t.Errorf("%v allocations per frame", n)
	}
}

// A super-packet becomes the segments that a NIC would make of it.
func TestSegments(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		payload := random(1, 10_001)
		b := tcpFrame(v6, payload)
		p, _ := parse(b)
		h := tap.VNetHdr{Flags: tap.HdrNeedsCsum, GSOType: tap.GSOTCPv4, GSOSize: 1448, HdrLen: uint16(p.payload), CsumStart: uint16(p.tcp), CsumOffset: 16}
		var got []byte
		n := 0
		segments(h, bytes.Clone(b), func(s []byte) {
			q, ok := parse(s)
			if !ok || !valid(s) {
				t.Fatalf("segment %d is not valid: %x", n, s[:60])
			}
			if seq := binary.BigEndian.Uint32(s[q.tcp+4:]); seq != 1000+uint32(len(got)) {
				t.Errorf("segment %d: sequence number %d", n, seq)
			}
			got = append(got, s[q.payload:]...)
			if psh := s[q.tcp+13]&8 != 0; psh != (len(got) == len(payload)) {
				t.Errorf("segment %d: PSH %v", n, psh)
			}
			n++
		})
		if !bytes.Equal(got, payload) || n != 7 {
			t.Errorf("%d segments, %d octets", n, len(got))
		}
	}
}

// A frame that asks to be cut, and has nothing to cut, is sent all the same.
func TestSegmentWithoutPayload(t *testing.T) {
	b := tcpFrame(false, nil)
	p, _ := parse(b)
	n := 0
	segments(tap.VNetHdr{Flags: tap.HdrNeedsCsum, GSOType: tap.GSOTCPv4, GSOSize: 1448, HdrLen: uint16(p.payload), CsumStart: uint16(p.tcp), CsumOffset: 16}, b, func(s []byte) {
		if n++; !valid(s) || len(s) != len(b) {
			t.Errorf("%x", s)
		}
	})
	if n != 1 {
		t.Errorf("%d frames", n)
	}
}

func TestFaultsNameTheirSeed(t *testing.T) {
	s := fmt.Sprint(Faults{Seed: 4711, Drop: 0.25})
	if !strings.Contains(s, "Seed:4711") || !strings.Contains(s, "Drop:0.25") {
		t.Error(s)
	}
}

// The same seed does the same, another something else; and what is counted is done.
func TestFaultsAreSeeded(t *testing.T) {
	run := func(seed uint64) (string, [][]byte) {
		f := Faults{Seed: seed, Drop: 0.1, Duplicate: 0.1, Flip: 0.1, SwapWords: 0.1}
		a, b := Pipe(Options{}, f, Faults{})
		for i := range 500 {
			send(t, a, tap.VNetHdr{}, tcpFrame(i%2 == 0, random(uint64(i), 100+i)))
		}
		return fmt.Sprint(a.(*Faulty).Counts()), take(t, b)
	}
	c1, f1 := run(1)
	c2, f2 := run(1)
	c3, _ := run(2)
	if c1 != c2 || len(f1) != len(f2) || c1 == c3 {
		t.Errorf("%s, %s, %s", c1, c2, c3)
	}
	for i := range f1 {
		if !bytes.Equal(f1[i], f2[i]) {
			t.Fatalf("frame %d differs", i)
		}
	}
}

func TestEachFault(t *testing.T) {
	const frames = 2000
	base := make([][]byte, frames)
	for i := range base {
		base[i] = tcpFrame(i%2 == 0, random(uint64(i), 200))
		binary.BigEndian.PutUint32(base[i][60:], uint32(i)) // in the TCP header or payload: a number
		p, _ := parse(base[i])
		p.finish(base[i])
	}
	for _, c := range []struct {
		name  string
		f     Faults
		count func(Counts) uint64
		check func(t *testing.T, got [][]byte, n int)
	}{
		{"drop", Faults{Drop: 0.1}, func(c Counts) uint64 { return c.Dropped }, func(t *testing.T, got [][]byte, n int) {
			if len(got) != frames-n {
				t.Errorf("%d frames came, %d were dropped", len(got), n)
			}
		}},
		{"duplicate", Faults{Duplicate: 0.1}, func(c Counts) uint64 { return c.Duplicated }, func(t *testing.T, got [][]byte, n int) {
			if len(got) != frames+n {
				t.Errorf("%d frames came, %d twice", len(got), n)
			}
		}},
		{"flip", Faults{Flip: 0.1}, func(c Counts) uint64 { return c.Flipped }, func(t *testing.T, got [][]byte, n int) {
			bad := 0
			for i, f := range got {
				if !bytes.Equal(f, base[i]) {
					bad++
				}
			}
			if bad != n {
				t.Errorf("%d frames differ, %d were hit", bad, n)
			}
		}},
		{"swap", Faults{SwapWords: 0.1}, func(c Counts) uint64 { return c.Swapped }, func(t *testing.T, got [][]byte, n int) {
			bad := 0
			for i, f := range got {
				if !bytes.Equal(f, base[i]) {
					bad++
				}
				if !valid(f) {
					t.Fatalf("frame %d: TCP's checksum notices", i)
				}
			}
			if bad != n {
				t.Errorf("%d frames differ, %d were hit", bad, n)
			}
		}},
		{"reorder", Faults{Reorder: 0.05, ReorderBy: 5 * time.Millisecond}, func(c Counts) uint64 { return c.Reordered }, func(t *testing.T, got [][]byte, n int) {
			if len(got) != frames {
				t.Errorf("%d frames of %d", len(got), frames)
			}
			late := 0
			for i := 1; i < len(got); i++ {
				if !bytes.Equal(got[i], base[i]) {
					late++
				}
			}
			if late == 0 {
				t.Error("all came in order")
			}
		}},
		{"black hole", Faults{BlackHole: 200}, func(c Counts) uint64 { return c.Swallowed }, func(t *testing.T, got [][]byte, n int) {
			if n != frames || len(got) != 0 {
				t.Errorf("%d of %d came", len(got), frames)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.f.Seed = 42
			a, b := Pipe(Options{Ring: 2 * frames}, c.f, Faults{})
			for _, f := range base {
				send(t, a, tap.VNetHdr{}, bytes.Clone(f))
			}
			time.Sleep(20 * time.Millisecond) // reordered ones are late
			n := c.count(a.(*Faulty).Counts())
			if n == 0 {
				t.Fatal("nothing was hit")
			}
			c.check(t, take(t, b), int(n))
			a.Close()
		})
	}
}

func TestOutageAndDelay(t *testing.T) {
	a, b := Pipe(Options{}, Faults{Delay: 20 * time.Millisecond}, Faults{})
	f := a.(*Faulty)
	begin := time.Now()
	for i := range 10 {
		send(t, a, tap.VNetHdr{}, tcpFrame(false, []byte{byte(i), 0, 0, 0}))
	}
	if len(take(t, b)) != 0 && time.Since(begin) < 20*time.Millisecond {
		t.Error("came at once")
	}
	time.Sleep(60 * time.Millisecond)
	got := take(t, b)
	if len(got) != 10 {
		t.Fatalf("%d frames", len(got))
	}
	for i, f := range got {
		if f[54] != byte(i) {
			t.Errorf("frame %d is %d", i, f[54])
		}
	}
	f.SetOutage(true)
	send(t, a, tap.VNetHdr{}, tcpFrame(false, []byte("lost")))
	f.SetOutage(false)
	send(t, a, tap.VNetHdr{}, tcpFrame(false, []byte("here")))
	time.Sleep(40 * time.Millisecond)
	if got := take(t, b); len(got) != 1 || string(got[0][54:]) != "here" || f.Counts().Lost != 1 {
		t.Errorf("%d frames, %+v", len(got), f.Counts())
	}
	a.Close()
}

func TestRelay(t *testing.T) {
	a, a1 := Pipe(Options{})
	b1, b := Pipe(Options{})
	faulty := Faults{Seed: 3, Drop: 0.5}.Wrap(b1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- Relay(ctx, a1, faulty) }()
	for i := range 200 {
		send(t, a, tap.VNetHdr{}, tcpFrame(false, []byte{byte(i), 1, 2, 3}))
		send(t, b, tap.VNetHdr{}, tcpFrame(false, []byte{byte(i), 1, 2, 3}))
	}
	deadline := time.Now().Add(5 * time.Second)
	back, there := 0, 0
	for back < 200 && time.Now().Before(deadline) {
		back += len(take(t, a))
		there += len(take(t, b))
		time.Sleep(time.Millisecond)
	}
	time.Sleep(5 * time.Millisecond)
	there += len(take(t, b))
	if back != 200 || there != 200-int(faulty.Counts().Dropped) || there == 200 {
		t.Errorf("%d back, %d there, %+v", back, there, faulty.Counts())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel = context.WithCancel(context.Background())
	go func() { done <- Faultwire(ctx, a1, b1, Faults{BlackHole: 100}, Faults{}) }()
	for range 5 {
		send(t, a, tap.VNetHdr{}, tcpFrame(false, make([]byte, 200)))
		send(t, b, tap.VNetHdr{}, tcpFrame(false, make([]byte, 200)))
	}
	back = 0
	for deadline := time.Now().Add(5 * time.Second); back < 5 && time.Now().Before(deadline); {
		back += len(take(t, a))
		time.Sleep(time.Millisecond)
	}
	if there := len(take(t, b)); back != 5 || there != 0 {
		t.Errorf("faultwire: %d back, %d through the black hole", back, there)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	go func() { done <- Relay(context.Background(), a1, b1) }()
	time.Sleep(time.Millisecond)
	a1.Close()
	if err := <-done; !errors.Is(err, tap.ErrClosed) {
		t.Errorf("a closed device: %v", err)
	}
}

// What comes on any queue goes on, also to a device of fewer.
func TestRelayQueues(t *testing.T) {
	a, a1 := Pipe(Options{Queues: 3})
	b1, b := Pipe(Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- Relay(ctx, a1, b1) }()
	for i, q := range a.Queues() {
		if n, err := q.WriteBatch([]tap.Frame{{Bufs: [][]byte{tcpFrame(false, []byte{byte(i)})}}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	got := map[byte]bool{}
	for deadline := time.Now().Add(5 * time.Second); len(got) < 3 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, f := range take(t, b) {
			got[f[54]] = true
		}
	}
	if len(got) != 3 {
		t.Errorf("frames of %d queues came, of 3", len(got))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func FuzzFaults(f *testing.F) {
	f.Add(tcpFrame(false, []byte("payload")), uint16(100), uint8(1))
	f.Add(tcpFrame(true, make([]byte, 3000)), uint16(1), uint8(4))
	f.Add(make([]byte, 14), uint16(0), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, size uint16, gso uint8) {
		if len(b) > tap.MaxFrame {
			return
		}
		total := 0
		segments(tap.VNetHdr{Flags: gso & 1, GSOType: gso, GSOSize: size, CsumStart: size, CsumOffset: uint16(gso)}, bytes.Clone(b), func(s []byte) {
			if total += len(s); total > 80*tap.MaxFrame && size > 40 {
				t.Fatal("too much came out")
			}
		})
		d := Faults{SwapWords: 1, Flip: 1}.Wrap(nopDevice{})
		if len(b) > 0 {
			_ = d.frame(nopQueue{}, b)
		}
	})
}

type nopDevice struct{ tap.Device }

func (nopDevice) Queues() []tap.Queue { return nil }

type nopQueue struct{ tap.Queue }

func (nopQueue) WriteBatch(fs []tap.Frame) (int, error) { return len(fs), nil }

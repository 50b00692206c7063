package llptest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/iwarp/llp"
)

// Options shape a connection; the zero value is a plain Ethernet LAN.
type Options struct {
	// EMSS is the payload of a segment in octets, 1420 where zero.
	EMSS int
	// Space is the send buffer in octets, 256 KiB where zero. What the other
	// side has not consumed counts.
	Space int
	// Cut returns how many of the next n octets lie in one slice of what Receive
	// returns, from 1 to n; nil leaves what was sent at once in one piece.
	Cut func(n int) int
	// Hold makes segments wait for more, as a TCP whose window is full does:
	// Left counts down, and what is sent continues the segment before.
	Hold bool
	// Segment sees every segment's payload on its way, lent.
	Segment func(from *Conn, payload []byte)
}

// Octets is a Cut that leaves no two octets together.
func Octets(int) int { return 1 }

// Random returns a Cut of pieces of any length, the same for the same seed.
func Random(seed uint64) func(n int) int {
	r := rand.New(rand.NewPCG(seed, 0))
	return func(n int) int { return 1 + r.IntN(n) }
}

// link is what both ends share.
type link struct {
	mu  sync.Mutex
	opt Options
}

// half is one direction: segments sent and not consumed.
type half struct {
	segs   [][]byte
	free   [][]byte
	off    int  // consumed of segs[0]
	queued int  // octets not consumed
	filled int  // of the segment being filled, with Hold
	want   bool // the writer waits for space
	fin    bool
}

// Conn is one end, an llp.Conn.
type Conn struct {
	l             *link
	local, remote netip.AddrPort
	peer          *Conn
	out           half
	err           error // ends both directions
	closed        bool
	notify        func(llp.Event)
	slices        [][]byte
	given         int // octets of the last Receive not yet consumed
}

var _ llp.Conn = (*Conn)(nil)

// Pipe returns the two ends of a connection, with addresses of its own.
func Pipe(o Options) (a, b *Conn) {
	return pipe(o, netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2"))
}

func pipe(o Options, la, lb netip.AddrPort) (a, b *Conn) {
	if o.EMSS == 0 {
		o.EMSS = 1420
	}
	if o.Space == 0 {
		o.Space = 256 << 10
	}
	l := &link{opt: o}
	a = &Conn{l: l, local: la, remote: lb}
	b = &Conn{l: l, local: lb, remote: la, peer: a}
	a.peer = b
	return a, b
}

// SetEMSS changes the payload of segments to come, as TCP options do.
func (c *Conn) SetEMSS(n int) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.opt.EMSS = n
}

// Break ends the connection at both ends with err: llp.ErrReset as by a reset on
// the way, llp.ErrTimeout as where the network has failed.
func (c *Conn) Break(err error) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.fail(err)
	c.peer.fail(err)
}

func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %v and %v", err, c.local, c.remote)
		c.ring(llp.Readable | llp.Writable | llp.Down)
	}
}

func (c *Conn) ring(e llp.Event) {
	if c.notify != nil {
		c.notify(e)
	}
}

// Room implements llp.Conn.
func (c *Conn) Room() llp.Room {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	e := min(c.l.opt.EMSS&^3, llp.MaxEMSS)
	r := llp.Room{EMSS: e, Left: e, Space: c.l.opt.Space - c.out.queued, MaxBatch: max(1, min(65455, c.l.opt.Space)/e) * e}
	if c.l.opt.Hold {
		r.Left = e - c.out.filled%e
	}
	if r.Space < r.MaxBatch {
		c.out.want = true
	}
	return r
}

// Send implements llp.Conn.
func (c *Conn) Send(b llp.Batch) error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	n := b.Len()
	switch {
	case c.err != nil:
		return c.err
	case c.closed || c.out.fin:
		return llp.ErrClosed
	case n > c.l.opt.Space-c.out.queued:
		c.out.want = true
		return llp.ErrWouldBlock
	case n == 0:
		return nil
	}
	h := &c.out
	p := h.buffer(n)
	if m, err := b.Read(p); err != nil {
		return err
	} else if m != n {
		return io.ErrShortWrite
	}
	e := c.l.opt.EMSS &^ 3
	if !c.l.opt.Hold {
		h.filled = 0
	}
	if c.l.opt.Segment == nil {
		h.filled += n
		h.segs = append(h.segs, p)
	} else {
		for q := p; len(q) > 0; {
			m := min(len(q), e-h.filled%e)
			h.segs = append(h.segs, q[:m:m])
			h.filled += m
			c.l.opt.Segment(c, q[:m])
			q = q[m:]
		}
	}
	h.filled %= e
	h.queued += n
	if c.peer.closed {
		// TCP takes the octets; the answer to them is a reset.
		c.fail(llp.ErrReset)
	}
	c.peer.ring(llp.Readable)
	return nil
}

func (h *half) buffer(n int) []byte {
	for k, p := range h.free {
		if cap(p) >= n {
			h.free = slices.Delete(h.free, k, k+1)
			return p[:n]
		}
	}
	return make([]byte, n)
}

// Receive implements llp.Conn.
func (c *Conn) Receive(need, budget int) ([][]byte, error) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	h := &c.peer.out
	switch {
	case c.err != nil:
		return nil, c.err
	case c.closed:
		return nil, llp.ErrClosed
	case h.queued < need && h.fin && h.queued == 0:
		return nil, io.EOF
	case h.queued < need && h.fin:
		return nil, io.ErrUnexpectedEOF
	case h.queued < need:
		return nil, llp.ErrWouldBlock
	}
	s := c.slices[:0]
	c.given = 0
	budget = max(need, budget)
	for i, seg := range h.segs {
		if c.given >= budget {
			break
		}
		if i == 0 {
			seg = seg[h.off:]
		}
		c.given += len(seg)
		for len(seg) > 0 {
			n := len(seg)
			if c.l.opt.Cut != nil {
				n = min(n, max(1, c.l.opt.Cut(n)))
			}
			s = append(s, seg[:n:n])
			seg = seg[n:]
		}
	}
	c.slices = s
	return s, nil
}

// poison is what lent memory holds once it was consumed.
var poison = func() (p [1 << 16]byte) {
	for i := range p {
		p[i] = 0xdb
	}
	return p
}()

// Consume implements llp.Conn.
func (c *Conn) Consume(n int) error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if n > c.given {
		panic(fmt.Sprintf("llptest: Consume of %d octets, Receive returned %d", n, c.given))
	}
	c.given -= n
	h := &c.peer.out
	h.queued -= n
	done := 0
	for n > 0 {
		seg := h.segs[done]
		m := min(n, len(seg)-h.off)
		copy(seg[h.off:h.off+m], poison[:]) // whoever still reads it shall notice
		h.off += m
		n -= m
		if h.off == len(seg) {
			if len(h.free) < 8 {
				h.free = append(h.free, seg[:0])
			}
			h.off = 0
			done++
		}
	}
	h.segs = h.segs[:copy(h.segs, h.segs[done:])]
	if h.want && h.queued <= c.l.opt.Space/2 {
		h.want = false
		c.peer.ring(llp.Writable)
	}
	return nil
}

// Notify implements llp.Conn.
func (c *Conn) Notify(f func(llp.Event)) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.notify = f
	e := llp.Writable
	if c.peer.out.queued > 0 || c.peer.out.fin {
		e |= llp.Readable
	}
	if c.err != nil {
		e |= llp.Readable | llp.Down
	}
	c.ring(e)
}

// CloseWrite implements llp.Conn.
func (c *Conn) CloseWrite() error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case !c.out.fin:
		c.out.fin = true
		c.peer.ring(llp.Readable)
	}
	return nil
}

// Abort implements llp.Conn.
func (c *Conn) Abort() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.peer.fail(llp.ErrReset)
	}
	c.fail(llp.ErrClosed)
}

// Close implements llp.Conn. As TCP does, it resets the peer where octets of the
// peer were left unread.
func (c *Conn) Close() error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	if c.peer.out.queued > 0 {
		c.peer.fail(llp.ErrReset)
	}
	if !c.out.fin {
		c.out.fin = true
		c.peer.ring(llp.Readable)
	}
	return nil
}

// LocalAddr implements llp.Conn.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr implements llp.Conn.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// Unread is the number of octets sent to c and not consumed.
func (c *Conn) Unread() int {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return c.peer.out.queued
}

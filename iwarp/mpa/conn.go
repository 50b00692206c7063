package mpa

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// Conn is a connection in full operation, after startup. One goroutine at a time
// calls Send, Receive and Drain; the rest is for any.
type Conn struct {
	llp      llp.Conn
	crc      bool
	ird, ord int
	peer     Peer

	deframer Deframer
	rerr     error       // ended the receiving half
	open     atomic.Bool // we may send (RFC 5044 section 7.1.2, rule 4)
	stats    counters
}

type counters struct {
	rxFPDUs, rxOctets, rxSplit, rxErrors    atomic.Uint64
	txFPDUs, txOctets, txBatches, txNoSpace atomic.Uint64
}

// Stats counts what a Conn has done. Octets are those of ULPDUs.
type Stats struct {
	RxFPDUs, RxOctets uint64
	RxSplit           uint64 // FPDUs that lay in several segments' memory
	RxErrors          uint64 // CRC or length errors
	TxFPDUs, TxOctets uint64
	TxBatches         uint64 // sent as one super-packet each
	TxNoSpace         uint64 // times that Send found the send buffer full
}

// Stats returns a copy of the counters.
func (c *Conn) Stats() Stats {
	s := &c.stats
	return Stats{
		RxFPDUs: s.rxFPDUs.Load(), RxOctets: s.rxOctets.Load(), RxSplit: s.rxSplit.Load(), RxErrors: s.rxErrors.Load(),
		TxFPDUs: s.txFPDUs.Load(), TxOctets: s.txOctets.Load(), TxBatches: s.txBatches.Load(), TxNoSpace: s.txNoSpace.Load(),
	}
}

func newConn(l llp.Conn, peer Peer, crc bool, ird, ord int, open bool) *Conn {
	c := &Conn{llp: l, crc: crc, ird: ird, ord: ord, peer: peer}
	c.deframer.CRC = crc
	c.open.Store(open)
	return c
}

// CRC says whether CRC32c is generated and checked, in both directions.
func (c *Conn) CRC() bool { return c.crc }

// IRD returns how many Read Requests of the peer may wait for their response.
func (c *Conn) IRD() int { return c.ird }

// ORD returns how many Read Requests of ours may wait for their response.
func (c *Conn) ORD() int { return c.ord }

// Peer returns what the peer announced at startup.
func (c *Conn) Peer() Peer { return c.peer }

// Open says whether this side may send: always at the initiator; at the
// responder once the first FPDU has come in (RFC 5044 section 7.1.2, rule 4).
func (c *Conn) Open() bool { return c.open.Load() }

// MULPDU returns the largest ULPDU that fits in one segment now, in octets.
func (c *Conn) MULPDU() int { return MULPDU(c.llp.Room().EMSS) }

// EMSS returns the payload of a full TCP segment now, in octets.
func (c *Conn) EMSS() int { return c.llp.Room().EMSS }

// Send sends what src yields, at most one super-packet, and returns the octets
// of its FPDUs; 0 where src has nothing. It does not block: llp.ErrWouldBlock
// says that the send buffer has no room for a super-packet, and a Writable edge
// will follow; ErrNotOpen that this side may not send yet. An error of src comes
// back after what it yielded before was sent; a *GatherError likewise.
func (c *Conn) Send(src Source) (octets int, err error) {
	if !c.open.Load() {
		return 0, ErrNotOpen
	}
	room := c.llp.Room()
	if room.Space < max(room.MaxBatch, minFill) {
		c.stats.txNoSpace.Add(1)
		return 0, llp.ErrWouldBlock
	}
	b := batches.Get().(*batch)
	defer batches.Put(b)
	b.n, b.octets, b.ulpdu, b.crc, b.bad = 0, 0, 0, c.crc, -1
	defer b.release(0)
	srcErr := b.plan(room, src)
	if b.n == 0 {
		return 0, srcErr
	}
	for {
		if err = c.llp.Send(b); err == nil || b.bad < 0 {
			break
		}
		// The memory behind one ULPDU is gone. What precedes it is good.
		srcErr = &GatherError{b.bad, err}
		b.release(b.bad)
		if b.bad = -1; b.n == 0 {
			return 0, srcErr
		}
	}
	if err != nil {
		if errors.Is(err, llp.ErrWouldBlock) {
			// Room promised the space; ULPDUs already taken from src cannot go back.
			err = &Error{CodeLocal, "TCP refused a batch that its send buffer had room for"}
		}
		return 0, err
	}
	c.stats.txBatches.Add(1)
	c.stats.txFPDUs.Add(uint64(b.n))
	c.stats.txOctets.Add(uint64(b.ulpdu))
	return b.octets, srcErr
}

// Receiver takes the ULPDUs that come in.
type Receiver interface {
	// ULPDU takes one ULPDU, lent until it returns; it may reslice v. An error
	// stops Receive, which returns it.
	ULPDU(v mem.Vec) error
}

// Receive hands what has come in to r, about budget octets at most, and returns
// the octets of the FPDUs delivered: 0 and nil where no whole one waits. It does
// not block. io.EOF says that the peer sent FIN between two FPDUs; an *Error
// that it broke the protocol; other errors how the connection ended. These are
// final.
func (c *Conn) Receive(budget int, r Receiver) (octets int, err error) {
	if c.rerr != nil {
		return 0, c.rerr
	}
	d := &c.deframer
	slices, err := c.llp.Receive(d.Need(), budget)
	if err != nil {
		if errors.Is(err, llp.ErrWouldBlock) {
			return 0, nil
		}
		c.rerr = err
		return 0, err
	}
	d.Feed(slices)
	var fpdus, ulpdus, split uint64
	for err == nil {
		var v mem.Vec
		if v, err = d.Next(); err != nil {
			break
		}
		fpdus++
		ulpdus += uint64(v.Len())
		if d.Split() {
			split++
		}
		err = r.ULPDU(v)
	}
	octets = d.Passed()
	if fpdus > 0 {
		c.open.Store(true)
		c.stats.rxFPDUs.Add(fpdus)
		c.stats.rxOctets.Add(ulpdus)
		c.stats.rxSplit.Add(split)
	}
	if err == ErrShort {
		err = nil
	} else if d.err != nil {
		c.rerr = err
		c.stats.rxErrors.Add(1)
	}
	if cerr := c.llp.Consume(octets); cerr != nil && err == nil {
		c.rerr, err = cerr, cerr
	}
	return octets, err
}

// Drain discards what has come in, up to budget octets, without looking at it:
// after an error nothing more is delivered, but the peer must still be able to
// send its FIN (RFC 5044 section 8). It returns what Receive would at the end.
func (c *Conn) Drain(budget int) (octets int, err error) {
	slices, err := c.llp.Receive(1, budget)
	if err != nil {
		if errors.Is(err, llp.ErrWouldBlock) {
			return 0, nil
		}
		return 0, err
	}
	octets = mem.Vec(slices).Len()
	return octets, c.llp.Consume(octets)
}

// LLP returns the TCP connection.
func (c *Conn) LLP() llp.Conn { return c.llp }

// Notify sets f to be called on each edge of the connection, as llp.Conn has it.
func (c *Conn) Notify(f func(llp.Event)) { c.llp.Notify(f) }

// CloseWrite sends FIN after what was sent.
func (c *Conn) CloseWrite() error { return c.llp.CloseWrite() }

// Abort resets the connection.
func (c *Conn) Abort() { c.llp.Abort() }

// Close releases the connection.
func (c *Conn) Close() error { return c.llp.Close() }

// LocalAddr returns the local end.
func (c *Conn) LocalAddr() netip.AddrPort { return c.llp.LocalAddr() }

// RemoteAddr returns the peer's end.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.llp.RemoteAddr() }

package dissect

import (
	"container/list"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/capture"
)

// Bounds of what a Decoder holds.
const (
	maxConns = 16384
	maxHeld  = 64 << 20 // octets, over all connections
)

// Decoder turns packets into records.
type Decoder struct {
	// Emit takes each record, which is lent until it returns. Its error ends the
	// decoding.
	Emit func(*Record) error
	// Note takes what else is worth knowing, with the packet's number; nil does
	// without.
	Note func(frame int, text string)

	conns  map[key]*list.Element // of *entry
	recent list.List             // the front is the most recent
	frame  int
	now    time.Time
	held   int
	counts Counts
	err    error
}

// Counts are what a Decoder has seen.
type Counts struct {
	Packets, TCP int
	Records      int
	Fragments    int // pieces of IP packets, which are not joined
	UnknownLink  int // packets of a link type that is not known
	Truncated    int // packets captured without all their headers
	Unread       int // directions of TCP connections, under way when the capture began, in which no FPDU was found
}

// key names a connection: its two ends, the lesser first.
type key struct{ a, b netip.AddrPort }

type entry struct {
	key key
	c   *conn
	len int // octets that it holds
}

// Decode reads all of a capture. A capture that is cut short has been decoded up
// to there when the error comes.
func (d *Decoder) Decode(r *capture.Reader) (Counts, error) {
	var p capture.Packet
	for {
		err := r.Next(&p)
		if err == nil {
			err = d.Packet(&p)
		}
		if err != nil {
			fin := d.Close()
			if err == io.EOF {
				err = nil
			}
			return d.counts, errors.Join(err, fin)
		}
	}
}

// Packet takes one packet.
func (d *Decoder) Packet(p *capture.Packet) error {
	d.frame, d.now = p.N, p.Time
	d.counts.Packets++
	var s capture.Segment
	switch capture.ParseSegment(p, &s) {
	case capture.TCP:
		d.counts.TCP++
		d.segment(&s)
	case capture.Fragment:
		d.counts.Fragments++
	case capture.UnknownLink:
		d.counts.UnknownLink++
	case capture.Truncated:
		d.counts.Truncated++
	}
	return d.err
}

// Close reads what is left of all connections. The Decoder cannot be used any
// more.
func (d *Decoder) Close() error {
	for e := d.recent.Back(); e != nil; e = d.recent.Back() {
		d.remove(e)
	}
	return d.err
}

func (d *Decoder) remove(e *list.Element) {
	x := d.recent.Remove(e).(*entry)
	delete(d.conns, x.key)
	d.held -= x.len
	d.finish(x.c)
}

// lookup returns the connection between two ends, made where it is not known.
func (d *Decoder) lookup(src, dst netip.AddrPort) (*list.Element, int) {
	k, i := key{src, dst}, 0
	if dst.Compare(src) < 0 {
		k, i = key{dst, src}, 1
	}
	if e := d.conns[k]; e != nil {
		d.recent.MoveToFront(e)
		return e, i
	}
	if d.conns == nil {
		d.conns = map[key]*list.Element{}
	}
	for len(d.conns) >= maxConns {
		d.remove(d.recent.Back())
	}
	c := new(conn)
	a, b := k.a.String(), k.b.String()
	c.dirs[0].src, c.dirs[0].dst = a, b
	c.dirs[1].src, c.dirs[1].dst = b, a
	e := d.recent.PushFront(&entry{key: k, c: c})
	d.conns[k] = e
	return e, i
}

func (d *Decoder) segment(s *capture.Segment) {
	e, i := d.lookup(s.Src, s.Dst)
	x := e.Value.(*entry)
	h := &x.c.dirs[i].half
	seq := s.Seq
	if s.Flags&capture.SYN != 0 {
		if h.Begun && !h.Same(seq) { // the ends are used again
			d.remove(e)
			e, i = d.lookup(s.Src, s.Dst)
			x = e.Value.(*entry)
			h = &x.c.dirs[i].half
		}
		if !h.Begun {
			h.Start(seq)
		}
		seq++
	}
	c := x.c
	h.Add(seq, s.Payload, s.Len, func(p capture.Piece) { d.take(c, i, p) })
	if s.Flags&capture.RST != 0 {
		d.remove(e)
		return
	}
	now := 0
	for j := range c.dirs {
		now += c.dirs[j].half.Held() + cap(c.dirs[j].buf)
	}
	d.held += now - x.len
	x.len = now
	for d.held > maxHeld && d.recent.Len() > 1 {
		d.remove(d.recent.Back())
	}
}

func (d *Decoder) emit(c *conn, r *Record) {
	c.spoke = true
	if d.err != nil {
		return
	}
	r.Frame, r.Time = d.frame, d.now
	d.counts.Records++
	d.err = d.Emit(r)
}

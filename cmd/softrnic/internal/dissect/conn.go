package dissect

import (
	"errors"
	"fmt"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/capture"
	"github.com/softrnic/softrnic/iwarp/mpa"
)

// Bounds per direction, in octets.
const (
	// maxWait is what an initiator may send before the Reply was seen.
	maxWait = 256 << 10
	// maxSearch is how far an FPDU is looked for in a stream of unknown position.
	maxSearch = 1 << 20
	// maxEffort is how many octets are summed up in vain, in searches.
	maxEffort = 1 << 30
	// maxOpen is how many places are watched at once.
	maxOpen = 32
	// maxIdle is the buffer that an idle direction keeps.
	maxIdle = 64 << 10
)

// phase is where one direction of a connection is.
//
//	          Request             Reply seen
//	starting ─────────→ waiting ───────────→ framed ←─────┐ CRC right
//	   │ Reply ──────────────────────────────↑ │ gap, bad │
//	   │ other octets                          ↓  length  │
//	   └──→ ignored ←── nothing found ────── searching ───┘
type phase uint8

const (
	starting  phase = iota // a Request or a Reply is due
	waiting                // the Request came; FPDUs begin once the Reply has been seen
	framed                 // FPDUs
	searching              // FPDUs, but where one begins is not known
	ignored                // not ours, or nothing that could be read
)

// crcMode is what is known of a connection's CRC.
type crcMode uint8

const (
	crcUnknown crcMode = iota // decided by the first FPDU
	crcOn
	crcOff
)

// conn is a TCP connection.
type conn struct {
	dirs    [2]dir // the first is from the side that was seen first
	crc     crcMode
	request *mpa.Frame // without private data
	reply   *mpa.Frame
	spoke   bool // a record came of it
}

// dir is one direction of a conn.
type dir struct {
	half     capture.Half
	src, dst string
	phase    phase
	began    bool // octets came
	buf      []byte
	framer   framer
	pos      uint64 // of buf in the stream of FPDUs
	suspect  bool   // the CRC of the last FPDU was wrong
	searched int    // octets dropped in this search
	at       int    // where in buf the search is
	open     []int  // offsets in buf before at where an FPDU may begin whose end has not come
	effort   int    // octets summed up in searches
}

// take appends what came in order, and reads on.
func (d *Decoder) take(c *conn, i int, p capture.Piece) {
	x := &c.dirs[i]
	if x.phase == ignored {
		return
	}
	if p.Lost > 0 {
		d.lost(c, i, p.Lost)
		return
	}
	if !x.began {
		x.began = true
		if !x.half.FromSYN { // the capture began later than the connection
			_, _, err := mpa.ParseFrame(p.Data)
			if maybe := errors.Is(err, mpa.ErrShort) && len(p.Data) >= 4; err != nil && !maybe {
				x.phase = searching
			}
		}
	}
	x.buf = append(x.buf, p.Data...)
	d.read(c, i)
}

// lost goes on after a gap.
func (d *Decoder) lost(c *conn, i, n int) {
	x := &c.dirs[i]
	if x.phase == waiting && len(x.buf) > 0 {
		x.phase = framed
		d.read(c, i)
	}
	x.began = true
	if c.spoke {
		what := ""
		if x.phase == starting {
			what = " of the MPA startup"
		}
		d.note("%s > %s: %d octets%s were not captured", x.src, x.dst, n, what)
	}
	x.pos += uint64(len(x.buf)) + uint64(n)
	x.drop(len(x.buf))
	x.search(0)
}

// search begins to look for an FPDU behind the first skip octets of the buffer.
func (x *dir) search(skip int) {
	x.phase, x.at, x.searched, x.suspect, x.open = searching, skip, 0, false, x.open[:0]
}

// drop passes n octets of the buffer.
func (x *dir) drop(n int) {
	x.buf = x.buf[:copy(x.buf, x.buf[n:])]
	if len(x.buf) == 0 && cap(x.buf) > maxIdle {
		x.buf = nil
	}
}

// read reads what the buffer has.
func (d *Decoder) read(c *conn, i int) {
	x := &c.dirs[i]
	for d.err == nil {
		switch x.phase {
		case ignored:
			x.buf = nil
			return
		case starting:
			if !d.start(c, i) {
				return
			}
		case waiting:
			if len(x.buf) < maxWait {
				return
			}
			d.note("%s > %s: FPDUs, but the Reply was not captured", x.src, x.dst)
			x.phase = framed
		case framed:
			if !d.framed(c, i) {
				return
			}
		case searching:
			if !d.find(c, i) {
				return
			}
		}
	}
}

// start reads a Request or a Reply.
func (d *Decoder) start(c *conn, i int) (more bool) {
	x, y := &c.dirs[i], &c.dirs[1-i]
	f, rest, err := mpa.ParseFrame(x.buf)
	switch {
	case errors.Is(err, mpa.ErrShort):
		return false
	case err != nil:
		if c.spoke || len(x.buf) >= mpa.FrameLen && looksMPA(x.buf) {
			d.note("%s > %s: %v", x.src, x.dst, err)
		}
		x.phase = ignored
		if !c.spoke {
			y.phase = ignored
		}
		return true
	}
	n := len(x.buf) - len(rest)
	r := Record{Src: x.src, Dst: x.dst, Kind: Request, Startup: startup(&f, x.buf[:n]), Wire: x.buf[:n]}
	if f.Reply {
		r.Kind = Reply
	}
	d.emit(c, &r)
	f.PrivateData = nil
	x.drop(n)
	x.phase = waiting
	if !f.Reply {
		c.request = &f
		return true
	}
	c.reply = &f
	if f.Reject {
		x.phase, y.phase = ignored, ignored
		return true
	}
	c.settle(i)
	x.phase = framed
	if y.phase == waiting {
		y.phase = framed
		d.read(c, 1-i)
	}
	return true
}

// looksMPA says whether b begins like a startup frame's key.
func looksMPA(b []byte) bool { return string(b[:min(len(b), 7)]) == "MPA ID " }

// settle draws the conclusions of a Reply in direction i.
func (c *conn) settle(i int) {
	x, y := &c.dirs[i], &c.dirs[1-i]
	y.framer.markers = c.reply.Markers
	switch {
	case c.reply.CRC, c.request != nil && c.request.CRC:
		c.crc = crcOn
	case c.request != nil:
		c.crc = crcOff
	}
	if c.request != nil {
		x.framer.markers = c.request.Markers
	}
}

// framed reads an FPDU.
func (d *Decoder) framed(c *conn, i int) (more bool) {
	x := &c.dirs[i]
	if x.suspect { // was it the length?
		yes, ok := x.plausible(0)
		if !ok {
			return false
		}
		if !yes {
			d.note("%s > %s: no FPDU follows the one with a wrong CRC: looking for the next", x.src, x.dst)
			x.search(1)
			return true
		}
	}
	f, ok, err := x.framer.first(x.buf, x.pos)
	if err != nil {
		d.note("%s > %s: %v: looking for the next FPDU", x.src, x.dst, err)
		x.search(1)
		return true
	}
	if !ok {
		return false
	}
	good := f.sum == f.stored
	if c.crc == crcUnknown {
		c.crc = crcOff
		if good {
			c.crc = crcOn
		}
	}
	r := Record{Src: x.src, Dst: x.dst, Kind: FPDU, Wire: x.buf[:f.wire], Markers: f.markers}
	segment(&r, f.ulpdu)
	switch {
	case c.crc == crcOff:
		r.CRC = CRCOff
	case good:
		r.CRC = CRCOk
	default:
		r.CRC = CRCBad
	}
	if f.marker != "" && r.Fault == "" {
		r.Fault = f.marker
	}
	x.suspect = c.crc == crcOn && !good
	d.emit(c, &r)
	x.drop(f.wire)
	x.pos += uint64(f.wire)
	return true
}

// plausible says whether there may be an FPDU at at, an offset in the buffer.
func (x *dir) plausible(at int) (yes, ok bool) {
	b, pos := x.buf[at:], x.pos+uint64(at)
	if x.framer.markers {
		if pos%4 != 0 { // as FPDUs and markers are multiples of 4
			return false, len(b) > 0
		}
		if pos%markerEvery == 0 {
			b = b[min(markerLen, len(b)):]
		}
	}
	return plausible(b)
}

// verdict is what can be said of a place in a search.
type verdict uint8

const (
	no verdict = iota
	yes
	tooEarly // more octets are needed
)

// find looks for the next FPDU: a header that can be, and a right CRC behind it.
// Where the connection may do without CRC, a field of zeros and the header of
// another FPDU behind it will do.
func (d *Decoder) find(c *conn, i int) (more bool) {
	x := &c.dirs[i]
	waiting := x.open
	x.open = x.open[:0]
	for _, at := range waiting {
		switch x.try(c, at) {
		case yes:
			d.found(c, i, at)
			return true
		case tooEarly:
			x.open = append(x.open, at)
		}
	}
	for ; x.at < len(x.buf); x.at++ {
		if x.searched+x.at > maxSearch || x.effort > maxEffort {
			d.giveUp(c, i)
			return true
		}
		switch x.try(c, x.at) {
		case yes:
			d.found(c, i, x.at)
			return true
		case tooEarly:
			if len(x.open) == maxOpen {
				x.open = append(x.open[:0], x.open[1:]...)
			}
			x.open = append(x.open, x.at)
		}
	}
	keep := x.at // what comes before is not needed any more
	if len(x.open) > 0 {
		keep = x.open[0]
	}
	for j := range x.open {
		x.open[j] -= keep
	}
	x.searched += keep
	x.pos += uint64(keep)
	x.at -= keep
	x.drop(keep)
	return false
}

// try says whether an FPDU begins at at, an offset in the buffer.
func (x *dir) try(c *conn, at int) verdict {
	maybe, ok := x.plausible(at)
	if !ok {
		return tooEarly
	}
	if !maybe {
		return no
	}
	f, whole, err := x.framer.first(x.buf[at:], x.pos+uint64(at))
	switch {
	case err != nil:
		return no
	case !whole:
		return tooEarly
	}
	x.effort += f.wire
	switch {
	case f.sum == f.stored:
		return yes
	case c.crc == crcOn || f.stored != 0:
		return no
	}
	switch maybe, ok := x.plausible(at + f.wire); {
	case !ok:
		return tooEarly
	case maybe:
		return yes
	}
	return no
}

// last finds an FPDU without CRC that nothing follows, at the end of a search.
func (d *Decoder) last(c *conn, i int) {
	x := &c.dirs[i]
	for _, at := range x.open {
		f, whole, err := x.framer.first(x.buf[at:], x.pos+uint64(at))
		if err == nil && whole && at+f.wire == len(x.buf) {
			d.found(c, i, at)
			d.read(c, i)
			return
		}
	}
}

// giveUp ends a search that found nothing.
func (d *Decoder) giveUp(c *conn, i int) {
	x := &c.dirs[i]
	switch n := x.searched + len(x.buf); {
	case n == 0:
	case c.spoke:
		d.note("%s > %s: no FPDU found in %d octets", x.src, x.dst, n)
	default:
		d.counts.Unread++
	}
	x.phase = ignored
}

// found goes on with the FPDU at at.
func (d *Decoder) found(c *conn, i, at int) {
	x := &c.dirs[i]
	if !c.spoke {
		d.note("%s > %s: the capture began within the connection", x.src, x.dst)
	}
	if n := x.searched + at; n > 0 {
		d.note("%s > %s: %d octets passed to the next FPDU", x.src, x.dst, n)
	}
	x.pos += uint64(at)
	x.drop(at)
	x.phase, x.at, x.searched, x.open = framed, 0, 0, x.open[:0]
}

// finish reads what is left at the end of a connection or of the capture.
func (d *Decoder) finish(c *conn) {
	for i := range c.dirs {
		x := &c.dirs[i]
		x.half.Flush(func(p capture.Piece) { d.take(c, i, p) })
	}
	for i := range c.dirs {
		x := &c.dirs[i]
		if x.phase == searching {
			d.last(c, i)
		}
		if x.phase == waiting && len(x.buf) > 0 {
			d.note("%s > %s: FPDUs, but the Reply was not captured", x.src, x.dst)
			x.phase = framed
			d.read(c, i)
		}
		switch {
		case x.phase == framed && len(x.buf) > 0:
			d.note("%s > %s: the last %d octets are no whole FPDU", x.src, x.dst, len(x.buf))
		case x.phase == searching:
			d.giveUp(c, i)
		}
	}
}

func (d *Decoder) note(format string, args ...any) {
	if d.Note != nil {
		d.Note(d.frame, fmt.Sprintf(format, args...))
	}
}

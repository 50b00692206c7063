package capture

import "slices"

// Bounds of what a Half holds back, waiting for segments in between.
const (
	maxPending       = 2 << 20 // octets
	maxPendingChunks = 2048
)

// Half is one direction of a TCP connection: segments go in as they were
// captured, octets come out in order and once. Where segments say different
// things of the same octets, the first one captured counts.
type Half struct {
	// Begun says that the sequence numbers are known; FromSYN that they are so from
	// the beginning of the stream.
	Begun, FromSYN bool

	next    uint32  // sequence number of the next octet
	pending []chunk // beyond next, sorted, without overlap
	held    int     // octets in pending
}

// chunk is n octets from seq; data is nil where they were not captured.
type chunk struct {
	seq  uint32
	n    int
	data []byte
}

// Piece is what comes out: octets, or word of some that are missing. Data is lent
// until the next call.
type Piece struct {
	Data []byte
	Lost int
}

// Held returns the octets that wait for others.
func (h *Half) Held() int { return h.held }

// Start says that the stream begins after the SYN with this sequence number.
func (h *Half) Start(seq uint32) {
	*h = Half{Begun: true, FromSYN: true, next: seq + 1}
}

// Same says whether a SYN with seq is that of this stream, sent again.
func (h *Half) Same(seq uint32) bool {
	return h.FromSYN && int32(h.next-(seq+1)) >= 0 && h.next-(seq+1) < 1<<20
}

// Add takes the payload of a segment, of which n octets were on the wire, and
// hands out what is now in order.
func (h *Half) Add(seq uint32, payload []byte, n int, out func(Piece)) {
	if n == 0 {
		return
	}
	if !h.Begun {
		h.Begun, h.next = true, seq
	}
	n = max(n, len(payload))
	got := len(payload)
	if seq == h.next && len(h.pending) == 0 && got == n { // the common case
		h.next += uint32(n)
		out(Piece{Data: payload})
		return
	}
	h.insert(seq, payload)
	if got < n {
		h.insertLost(seq+uint32(got), n-got)
	}
	h.drain(out)
	for h.held > maxPending || len(h.pending) > maxPendingChunks {
		h.skip(out)
	}
}

// Flush hands out everything that waits, and says what is missing in between.
func (h *Half) Flush(out func(Piece)) {
	for len(h.pending) > 0 {
		h.skip(out)
	}
}

// skip gives up the octets between next and what waits.
func (h *Half) skip(out func(Piece)) {
	gap := int(h.pending[0].seq - h.next)
	h.next = h.pending[0].seq
	out(Piece{Lost: gap})
	h.drain(out)
}

func (h *Half) drain(out func(Piece)) {
	i := 0
	for ; i < len(h.pending) && h.pending[i].seq == h.next; i++ {
		c := h.pending[i]
		h.next += uint32(c.n)
		if c.data == nil {
			out(Piece{Lost: c.n})
			continue
		}
		h.held -= c.n
		out(Piece{Data: c.data})
	}
	h.pending = slices.Delete(h.pending, 0, i)
}

func (h *Half) insert(seq uint32, data []byte) {
	h.place(seq, len(data), func(off, n int) chunk {
		h.held += n
		return chunk{seq + uint32(off), n, slices.Clone(data[off : off+n])}
	})
}

func (h *Half) insertLost(seq uint32, n int) {
	h.place(seq, n, func(off, n int) chunk { return chunk{seq: seq + uint32(off), n: n} })
}

// place puts the parts of the n octets from seq that are neither delivered nor
// pending into pending; part makes one of them.
func (h *Half) place(seq uint32, n int, part func(off, n int) chunk) {
	off := 0
	if old := int32(h.next - seq); old > 0 {
		off = int(old)
	}
	// All arithmetic from here on is relative to next, so that it does not wrap.
	at := func(s uint32) int { return int(int32(s - h.next)) }
	base := at(seq)
	i := 0
	for off < n {
		for i < len(h.pending) && at(h.pending[i].seq)+h.pending[i].n <= base+off {
			i++
		}
		end := n
		if i < len(h.pending) {
			start := at(h.pending[i].seq)
			if start <= base+off { // these are there
				off = start + h.pending[i].n - base
				continue
			}
			end = min(n, start-base)
		}
		h.pending = slices.Insert(h.pending, i, part(off, end-off))
		off = end
	}
}

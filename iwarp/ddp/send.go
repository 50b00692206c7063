package ddp

import (
	"github.com/softrnic/softrnic/iwarp/mem"
	"github.com/softrnic/softrnic/iwarp/mpa"
)

// MaxULPHeader is the room for an upper layer's own header, in octets.
const MaxULPHeader = mpa.MaxHeader - UntaggedLen

// Message is a message to be sent.
type Message struct {
	Tagged  bool
	RsvdULP uint8
	// A tagged message goes to TO of STag.
	STag mem.STag
	TO   uint64
	// An untagged one goes to QN, where MSN and MO are counted here. RsvdULP4 are
	// four more octets of the upper layer's.
	QN       QN
	RsvdULP4 uint32
	// HdrLen octets of Hdr come first. A message that has them is not cut.
	Hdr    [MaxULPHeader]byte
	HdrLen int
	// Len octets of SGL follow.
	SGL mem.SGL
	Len int
	// Class and Token are handed back in Source.Sent and Source.Failed.
	Class uint8
	Token uint64
}

// Source yields the messages to send, in order. Its methods run inside Send; they
// must not block and must not call the Conn.
type Source interface {
	// Next sets m and returns true, or returns false where there is nothing.
	Next(m *Message) bool
	// Sent says that TCP has taken all of a message.
	Sent(class uint8, token uint64)
	// Failed says that the memory of a message could not be read, with what was
	// wrong. Nothing of the segment at hand was sent.
	Failed(class uint8, token uint64, err error)
}

// mark says that a message ended with the ULPDU of this index in a batch.
type mark struct {
	index int
	class uint8
	token uint64
}

// sender cuts messages into segments, an mpa.Source.
type sender struct {
	src    Source
	msn    [queues]MSN // of the next message
	m      Message     // at hand, where active
	active bool
	off    int // octets of m that were cut off

	index int // of the next ULPDU in this batch
	marks []mark
	hole  error // why m's memory could not be acquired
}

// Next implements mpa.Source. A segment has at most max octets (RFC 5041 section
// 5.2), and at least one of payload where the message has any left.
func (s *sender) Next(max int, u *mpa.ULPDU) (bool, error) {
	if !s.active {
		if !s.src.Next(&s.m) {
			return false, nil
		}
		s.active, s.off = true, 0
	}
	m := &s.m
	hdr := UntaggedLen
	if m.Tagged {
		hdr = TaggedLen
	}
	hdr += m.HdrLen
	left := m.Len - s.off
	n := min(left, max-hdr)
	switch {
	case n < 0, n == 0 && left > 0, m.HdrLen > 0 && n < left:
		return false, nil // does not fit
	}
	u.HdrLen, u.SGL, u.Off, u.Len = hdr, m.SGL, s.off, n
	if n > 0 {
		if err := m.SGL.Acquire(); err != nil {
			s.hole = err
			return false, err
		}
	}
	last := n == left
	s.header(u.Hdr[:], last)
	s.off += n
	if last {
		if !m.Tagged {
			s.msn[m.QN]++
		}
		s.active = false
		s.marks = append(s.marks, mark{s.index, m.Class, m.Token})
	}
	s.index++
	return true, nil
}

func (s *sender) header(b []byte, last bool) {
	m := &s.m
	n := TaggedLen
	if m.Tagged {
		h := Tagged{Last: last, RsvdULP: m.RsvdULP, STag: m.STag, TO: m.TO + uint64(s.off)}
		h.Put(b)
	} else {
		h := Untagged{Last: last, RsvdULP: m.RsvdULP, RsvdULP4: m.RsvdULP4, QN: m.QN, MSN: s.msn[m.QN], MO: uint32(s.off)}
		h.Put(b)
		n = UntaggedLen
	}
	for i, c := range m.Hdr[:m.HdrLen] {
		b[n+i] = c
	}
}

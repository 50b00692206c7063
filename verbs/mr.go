package verbs

import (
	"fmt"

	"github.com/softrnic/softrnic/iwarp/mem"
)

// Access is a set of rights on registered memory.
type Access = mem.Access

const (
	// LocalWrite lets receives and Reads of this side write to the memory.
	LocalWrite = mem.LocalWrite
	// RemoteRead lets the peer of a QP in the same PD read it.
	RemoteRead = mem.RemoteRead
	// RemoteWrite lets the peer of a QP in the same PD write it.
	RemoteWrite = mem.RemoteWrite
	// RemoteInvalidate lets such a peer take the registration away by a Send with
	// Invalidate. No other right implies it.
	RemoteInvalidate = mem.RemoteInvalidate
)

// MR is registered memory. Any goroutine may call its methods.
type MR struct {
	pd *PD
	r  *mem.Region
}

// RegMR registers buf, which stays the program's and must not be moved or freed
// before Dereg; its first octet has TO 0. buf may be empty. Bounds are exact to the
// octet. It fails with ErrInvalid or ErrClosed.
func (p *PD) RegMR(buf []byte, access Access) (*MR, error) { return p.RegMRAt(buf, 0, access) }

// RegMRAt is RegMR with the TO of the first octet chosen by the program. base plus
// len(buf) must not pass 2^64.
func (p *PD) RegMRAt(buf []byte, base uint64, access Access) (*MR, error) {
	p.d.mu.Lock()
	if p.closed || p.d.closed {
		p.d.mu.Unlock()
		return nil, fmt.Errorf("PD: %w", ErrClosed)
	}
	p.mrs++
	p.d.mu.Unlock()
	r, err := p.d.table.Register(p.id, buf, base, access)
	if err != nil {
		p.drop()
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return &MR{p, r}, nil
}

func (p *PD) drop() {
	p.d.mu.Lock()
	p.mrs--
	p.d.mu.Unlock()
}

// Dereg takes the registration away. When it returns no octet of the memory is
// being read or written any more, nor will be; it waits for copies in progress,
// never for a peer. Work that still names the MR fails with LocalProtection; a
// peer's access to it ends the peer's connection.
func (m *MR) Dereg() error {
	if err := m.pd.d.table.Deregister(m.r); err != nil {
		return fmt.Errorf("MR %v: %w: %w", m.r.STag(), ErrClosed, err)
	}
	m.pd.drop()
	return nil
}

// STag is the name of the memory for peers.
func (m *MR) STag() STag { return m.r.STag() }

// Base is the TO of the first octet.
func (m *MR) Base() uint64 { return m.r.Base() }

// Len is the size in octets.
func (m *MR) Len() int { return m.r.Len() }

// Access returns the rights.
func (m *MR) Access() Access { return m.r.Access() }

// Bytes is the memory itself.
func (m *MR) Bytes() []byte { return m.r.Bytes() }

// Valid says whether the registration holds: it does until Dereg, or until a peer
// that may has invalidated it.
func (m *MR) Valid() bool { return m.r.Valid() }

// SGE names n octets from off.
func (m *MR) SGE(off, n int) SGE { return SGE{m, off, n} }

// Load copies the octets from off to p. A program may poll the last octets of an
// RDMA Write that is under way with it, cleanly under the race detector; when it
// sees the last octet all others of that message are in place. It panics where off
// and p do not lie within the memory.
func (m *MR) Load(p []byte, off int) { m.r.Load(p, off) }

// LoadByte is Load of one octet.
func (m *MR) LoadByte(off int) byte { return m.r.LoadByte(off) }

// LoadUint64 is Load of eight octets, in the machine's byte order.
func (m *MR) LoadUint64(off int) uint64 { return m.r.LoadUint64(off) }

// span resolves an SGE for a QP of PD p, with the right want.
func (s *SGE) span(p *PD, want Access) (mem.Span, error) {
	switch {
	case s.MR == nil:
		return mem.Span{}, errorf(ErrInvalid, "SGE of %d octets without an MR", s.Len)
	case s.MR.pd != p:
		return mem.Span{}, fmt.Errorf("verbs: SGE of MR %v: %w: use an MR of the QP's PD", s.MR.STag(), ErrPD)
	case s.Off < 0 || s.Len < 0 || s.Len > s.MR.Len()-s.Off:
		return mem.Span{}, fmt.Errorf("verbs: SGE: %w", &CheckError{Err: ErrBounds, STag: s.MR.STag(), TO: uint64(s.Off), Len: uint64(s.Len), Size: s.MR.Len()})
	case s.MR.Access()&want != want:
		return mem.Span{}, fmt.Errorf("verbs: SGE: %w", &CheckError{Err: ErrAccess, STag: s.MR.STag(), TO: uint64(s.Off), Len: uint64(s.Len), Want: want, Have: s.MR.Access()})
	case !s.MR.Valid():
		return mem.Span{}, fmt.Errorf("verbs: SGE: %w", &CheckError{Err: ErrSTag, STag: s.MR.STag(), TO: uint64(s.Off), Len: uint64(s.Len)})
	}
	return s.MR.r.Span(s.Off, s.Len), nil
}

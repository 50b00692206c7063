package verbs

import (
	"fmt"

	"github.com/softrnic/softrnic/iwarp/mem"
)

// AllocPD makes a protection domain: what is made in one cannot be used from
// another (RFC 5042 section 5.2). It fails with ErrClosed only.
func (d *Device) AllocPD() (*PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("device: %w", ErrClosed)
	}
	d.nextPD++
	pd := &PD{d: d, id: d.nextPD}
	d.pds[pd] = struct{}{}
	return pd, nil
}

// PD is a protection domain.
type PD struct {
	d        *Device
	id       mem.PD
	mrs, qps int // d.mu
	closed   bool
}

// Device returns the device of the PD.
func (p *PD) Device() *Device { return p.d }

// Close gives the PD up. It fails with ErrBusy while it has MRs or QPs.
func (p *PD) Close() error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	switch {
	case p.closed:
		return fmt.Errorf("PD: %w", ErrClosed)
	case p.mrs > 0 || p.qps > 0:
		return errorf(ErrBusy, "PD with %d MRs and %d QPs: deregister and close them first", p.mrs, p.qps)
	}
	p.closed = true
	delete(p.d.pds, p)
	return nil
}

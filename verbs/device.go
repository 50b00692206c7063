package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// Limits of every Device.
const (
	MaxWR     = 1 << 16 // work requests in a queue
	MaxSGE    = 32      // SGEs in a work request; a Read has one
	MaxInline = 4096    // octets
	MaxCQE    = 1 << 22 // entries of a CQ
	MaxDepth  = 128     // IRD and ORD
)

// Config says how a Device behaves. The zero value is good.
type Config struct {
	// Logger takes connections that come up and go down; nil discards.
	Logger *slog.Logger
	// StartupTimeout bounds an MPA startup; 0 means 10 s.
	StartupTimeout time.Duration
	// MaxStartups bounds the startups in progress of one Listener; beyond it the
	// oldest is reset. 0 means 256.
	MaxStartups int
	// CloseTimeout is how long a graceful close waits for the peer's; 0 means 5 s.
	CloseTimeout time.Duration
}

// Device is an RNIC. Any goroutine may call its methods.
type Device struct {
	stack llp.Stack
	cfg   Config
	log   *slog.Logger
	table *mem.Table

	mu        sync.Mutex
	closed    bool
	nextPD    mem.PD
	nextQP    uint32
	pds       map[*PD]struct{}
	cqs       map[*CQ]struct{}
	qps       map[*QP]struct{}
	listeners map[*Listener]struct{}
	stats     deviceStats
}

type deviceStats struct {
	connects, accepts, rejects, startupFailures, startupEvictions, terminates atomic.Uint64
}

// DeviceStats counts what a Device has done, and what it holds.
type DeviceStats struct {
	Connects, Accepts uint64 // connections made, by role
	Rejects           uint64 // refused by us
	StartupFailures   uint64 // of incoming connections
	StartupEvictions  uint64 // startups reset for newer ones
	Terminates        uint64 // connections ended by a Terminate, of either side
	PDs, CQs, QPs     int
	MRs               int
}

// Open makes a Device on stack, which stays the caller's and must outlive it.
func Open(stack llp.Stack, cfg Config) (*Device, error) {
	if stack == nil {
		return nil, errorf(ErrInvalid, "Open needs a stack")
	}
	if cfg.StartupTimeout <= 0 {
		cfg.StartupTimeout = 10 * time.Second
	}
	if cfg.MaxStartups <= 0 {
		cfg.MaxStartups = 256
	}
	if cfg.CloseTimeout <= 0 {
		cfg.CloseTimeout = 5 * time.Second
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Device{stack: stack, cfg: cfg, log: log, table: mem.NewTable(), pds: map[*PD]struct{}{}, cqs: map[*CQ]struct{}{},
		qps: map[*QP]struct{}{}, listeners: map[*Listener]struct{}{}}, nil
}

// Stats returns a copy of the counters.
func (d *Device) Stats() DeviceStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.stats
	return DeviceStats{Connects: s.connects.Load(), Accepts: s.accepts.Load(), Rejects: s.rejects.Load(),
		StartupFailures: s.startupFailures.Load(), StartupEvictions: s.startupEvictions.Load(), Terminates: s.terminates.Load(),
		PDs: len(d.pds), CQs: len(d.cqs), QPs: len(d.qps), MRs: d.table.Len()}
}

// Close ends every listener and connection, abruptly, and returns when all their
// goroutines have ended. Work requests are flushed; CQs can still be polled.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return fmt.Errorf("device: %w", ErrClosed)
	}
	d.closed = true
	var errs []error
	ls, qs := keys(d.listeners), keys(d.qps)
	d.mu.Unlock()
	for _, l := range ls {
		errs = append(errs, l.Close())
	}
	for _, q := range qs {
		q.begin(func() { q.abort = true })
	}
	for _, q := range qs {
		errs = append(errs, q.Close())
		<-q.done // where the program closes it at this moment too
	}
	for i, err := range errs {
		if errors.Is(err, ErrClosed) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}

func keys[T comparable](m map[T]struct{}) []T {
	s := make([]T, 0, len(m))
	for k := range m {
		s = append(s, k)
	}
	return s
}

// AllocPD makes a protection domain: what is made in one cannot be used from
// another (RFC 5042 section 5.2).
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

package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
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

// Limits says how much a Device can do.
type Limits struct {
	MaxWR, MaxSGE, MaxReadSGE, MaxInline, MaxCQE, MaxDepth int
	MaxMR                                                  int
	MaxMessage                                             uint32 // octets
}

// Limits returns the limits of d. They are those of every Device of this version.
func (d *Device) Limits() Limits {
	return Limits{MaxWR: MaxWR, MaxSGE: MaxSGE, MaxReadSGE: 1, MaxInline: MaxInline, MaxCQE: MaxCQE, MaxDepth: MaxDepth, MaxMR: mem.MaxRegions, MaxMessage: MaxMessage}
}

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
	requests  map[*ConnRequest]struct{} // returned by Accept, or about to be
	stats     deviceStats
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
		qps: map[*QP]struct{}{}, listeners: map[*Listener]struct{}{}, requests: map[*ConnRequest]struct{}{}}, nil
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
	d.mu.Lock()
	rs := keys(d.requests) // no more can come
	d.mu.Unlock()
	for _, r := range rs {
		r.drop()
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

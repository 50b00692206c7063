package verbs

import (
	"context"
	"fmt"
	"sync"
)

// CQ is a completion queue, for any number of QPs. Any goroutine may call its
// methods.
type CQ struct {
	d     *Device
	ready chan struct{} // a token while entries wait: one waiter takes it at a time
	event chan struct{} // a token after an armed CQ fired

	mu      sync.Mutex
	ring    []WC
	head, n int
	armed   armed
	err     error
	users   map[*QP]int
	closed  bool
}

type armed uint8

const (
	armedNot armed = iota
	armedSolicited
	armedAny
)

// CreateCQ makes a CQ of depth entries, 1 to MaxCQE. A completion that finds it
// full is lost, and with it the CQ and its QPs: make it as deep as the queues that
// use it together. It fails with ErrInvalid where depth is none, and with ErrClosed.
func (d *Device) CreateCQ(depth int) (*CQ, error) {
	if depth < 1 || depth > MaxCQE {
		return nil, errorf(ErrInvalid, "CQ depth %d is not from 1 to %d", depth, MaxCQE)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("device: %w", ErrClosed)
	}
	c := &CQ{d: d, ring: make([]WC, depth), ready: make(chan struct{}, 1), event: make(chan struct{}, 1), users: map[*QP]int{}}
	d.cqs[c] = struct{}{}
	return c, nil
}

// Poll moves up to len(wcs) completions to wcs, in order, and returns how many; 0
// and nil where none waits. After an overflow it returns what was there, then
// ErrOverflow. It never blocks.
func (c *CQ) Poll(wcs []WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for ; n < len(wcs) && c.n > 0; n++ {
		slot := &c.ring[c.head]
		wcs[n] = *slot
		*slot = WC{} // keep no QP or error alive
		if c.head++; c.head == len(c.ring) {
			c.head = 0
		}
		c.n--
	}
	if n == 0 && len(wcs) > 0 {
		switch {
		case c.err != nil:
			return 0, c.err
		case c.closed:
			return 0, fmt.Errorf("CQ: %w", ErrClosed)
		}
	}
	return n, nil
}

// Wait is Poll that blocks until there is a completion, ctx ends, or the CQ is
// lost or closed. What is there is returned even where ctx has ended. wcs must not
// be empty.
func (c *CQ) Wait(ctx context.Context, wcs []WC) (int, error) {
	if len(wcs) == 0 {
		return 0, errorf(ErrInvalid, "Wait needs room for a WC")
	}
	for {
		n, err := c.Poll(wcs)
		if n > 0 || err != nil {
			c.mu.Lock()
			if c.n > 0 || c.err != nil || c.closed {
				c.wake() // others wait too
			}
			c.mu.Unlock()
			return n, err
		}
		select {
		case <-c.ready:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (c *CQ) wake() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// Arm asks for one event on Events when the next completion comes; with
// solicitedOnly, only for one that is solicited or in error. To miss none: Arm,
// Poll until empty, then wait for the event. Arming for any completion includes the
// solicited ones and is not taken back by a later Arm(true).
func (c *CQ) Arm(solicitedOnly bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if solicitedOnly {
		c.armed = max(c.armed, armedSolicited)
	} else {
		c.armed = armedAny
	}
}

// Events has one token after each Arm whose completion came, or after the CQ was
// lost or closed.
func (c *CQ) Events() <-chan struct{} { return c.event }

func (c *CQ) fire() { // c.mu is held
	c.armed = armedNot
	select {
	case c.event <- struct{}{}:
	default:
	}
}

// complete implements completionSink.
func (c *CQ) complete(wc WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil || c.closed:
		return
	case c.n == len(c.ring):
		c.err = errorf(ErrOverflow, "CQ of %d entries", len(c.ring))
		for q := range c.users {
			q.ringFatal(c.err)
		}
		c.fire()
		c.wake()
		return
	}
	i := c.head + c.n
	if i >= len(c.ring) {
		i -= len(c.ring)
	}
	c.ring[i] = wc
	c.n++
	c.wake()
	if c.armed == armedAny || c.armed == armedSolicited && (wc.Flags&Solicited != 0 || wc.Status != Success) {
		c.fire()
	}
}

// Depth returns the number of entries.
func (c *CQ) Depth() int { return len(c.ring) }

// Close gives the CQ up and ends every Wait. It fails with ErrBusy while QPs use it.
func (c *CQ) Close() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return fmt.Errorf("CQ: %w", ErrClosed)
	case len(c.users) > 0:
		return errorf(ErrBusy, "CQ of %d QPs: close them first", len(c.users))
	}
	c.closed = true
	c.fire()
	c.wake()
	delete(c.d.cqs, c)
	return nil
}

func (c *CQ) use(q *QP, by int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if by > 0 && c.closed {
		return fmt.Errorf("CQ: %w", ErrClosed)
	}
	if by > 0 && c.err != nil {
		return c.err
	}
	if c.users[q] += by; c.users[q] == 0 {
		delete(c.users, q)
	}
	return nil
}

package taptest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/tap"
)

// Relay carries frames from each of two devices to the other until ctx ends or one
// of them fails or is closed: a wire between two TAPs, whose faults are those of
// Faults.Wrap around a or b. It closes neither, and returns nil when ctx ended.
func Relay(ctx context.Context, a, b tap.Device) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	qa, qb := a.Queues(), b.Queues()
	carry := func(from, to []tap.Queue) {
		for i, q := range from {
			wg.Go(func() {
				defer cancel() // no queue goes on without the others
				if err := pump(ctx, q, to[i%len(to)]); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
				}
			})
		}
	}
	carry(qa, qb)
	carry(qb, qa)
	<-ctx.Done()
	for _, q := range slices.Concat(qa, qb) {
		q.Wake()
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Faultwire is Relay with faults: ab are done to what a sends to b, ba to what b
// sends to a. It is the wire between two real TAPs on hosts whose kernel has no netem.
func Faultwire(ctx context.Context, a, b tap.Device, ab, ba Faults) error {
	fa, fb := ba.Wrap(a), ab.Wrap(b)
	defer fa.stop()
	defer fb.stop()
	return Relay(ctx, fa, fb)
}

const relayBatch = 32

func pump(ctx context.Context, from, to tap.Queue) error {
	frames := make([]tap.Frame, relayBatch)
	space := make([][]byte, relayBatch)
	for i := range frames {
		space[i] = make([]byte, tap.MaxFrame)
		frames[i].Bufs = make([][]byte, 1)
	}
	for ctx.Err() == nil {
		for i := range frames {
			frames[i].Bufs[0] = space[i]
		}
		n, err := from.ReadBatch(frames)
		if err != nil {
			return err
		}
		if n == 0 {
			// The timeout only covers a Wake that came while we were reading.
			if err := from.Wait(100 * time.Millisecond); err != nil {
				return err
			}
			continue
		}
		for i := range frames[:n] {
			frames[i].Bufs[0] = space[i][:frames[i].N]
		}
		for sent := 0; sent < n; {
			m, err := to.WriteBatch(frames[sent:n])
			if errors.Is(err, tap.ErrClosed) {
				return err
			}
			if sent += m; err != nil {
				sent++ // a frame that the other side cannot take is lost
			}
		}
	}
	return nil
}

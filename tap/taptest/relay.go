package taptest

import (
	"context"
	"errors"
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
	errs := make([]error, 2)
	carry := func(i int, from, to tap.Queue) {
		defer cancel() // one direction does not go on without the other
		errs[i] = pump(ctx, from, to)
	}
	qa, qb := a.Queues()[0], b.Queues()[0]
	wg.Go(func() { carry(0, qa, qb) })
	wg.Go(func() { carry(1, qb, qa) })
	<-ctx.Done()
	qa.Wake()
	qb.Wake()
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

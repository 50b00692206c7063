package verbs_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/verbstest"
)

// A peer's Reads and Writes are served while the program at the target sleeps: in
// the bubble time stands still until they are done.
func TestServedWhileAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := verbstest.Pair(t, verbstest.Options{})
		m, r := a.MR(1<<16, verbs.LocalWrite), b.MR(1<<16, verbs.RemoteRead|verbs.RemoteWrite)
		awake := make(chan struct{})
		go func() { // all that the target's program does
			time.Sleep(time.Hour)
			close(awake)
		}()
		begin := time.Now()
		for i := range 100 {
			m.Bytes()[0] = byte(i)
			a.Send(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{m.SGE(0, 1<<15)}, RemoteSTag: r.STag()},
				verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(1<<15, 1<<15)}, RemoteSTag: r.STag(), Flags: verbs.Signaled})
			ok(t, a.Wait(1))
			if m.Bytes()[1<<15] != byte(i) {
				t.Fatalf("round %d read %d", i, m.Bytes()[1<<15])
			}
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("took until %v, when the target's program was awake", d)
		}
		<-awake
	})
}

// BenchmarkReadWhileComputing measures the round trip of a Read of 64 octets while
// goroutines of the same process compute: 0, 1 and 2 for each P. Both ends share the
// process here, so that three goroutines have to be scheduled for one round trip;
// where the peer has a process of its own, it is one.
func BenchmarkReadWhileComputing(b *testing.B) {
	for _, per := range []int{0, 1, 2} {
		b.Run(fmt.Sprintf("computing=%dxGOMAXPROCS", per), func(b *testing.B) {
			x, y := verbstest.Pair(b, verbstest.Options{})
			m, r := x.MR(64, verbs.LocalWrite), y.MR(64, verbs.RemoteRead)
			var stop atomic.Bool
			var wg sync.WaitGroup
			for range per * runtime.GOMAXPROCS(0) {
				wg.Go(func() {
					for n := uint64(1); !stop.Load(); {
						for range 1000 {
							n = n*6364136223846793005 + 1442695040888963407
						}
					}
				})
			}
			defer wg.Wait()
			defer stop.Store(true)
			sgl := []verbs.SGE{m.SGE(0, 64)}
			var wc [1]verbs.WC
			took := make([]time.Duration, 0, b.N)
			b.ResetTimer()
			for range b.N {
				begin := time.Now()
				if _, err := x.QP.PostSend(verbs.SendWR{Op: verbs.OpRead, SGL: sgl, RemoteSTag: r.STag(), Flags: verbs.Signaled}); err != nil {
					b.Fatal(err)
				}
				if _, err := x.CQ.Wait(context.Background(), wc[:]); err != nil || wc[0].Status != verbs.Success {
					b.Fatal(err, wc[0].Status)
				}
				took = append(took, time.Since(begin))
			}
			b.StopTimer()
			slices.Sort(took)
			us := func(q float64) float64 {
				return float64(took[min(len(took)-1, int(q*float64(len(took))))].Nanoseconds()) / 1000
			}
			b.ReportMetric(us(0.5), "p50-us")
			b.ReportMetric(us(0.99), "p99-us")
			b.ReportMetric(us(1), "max-us")
		})
	}
}

// BenchmarkPost measures what a Write of 64 octets costs from the post to its
// completion, with many under way.
func BenchmarkPost(b *testing.B) {
	for _, size := range []int{64, 4096, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			x, y := verbstest.Pair(b, verbstest.Options{EMSS: 8948})
			m, r := x.MR(size, verbs.LocalWrite), y.MR(size, verbs.RemoteWrite)
			wr := verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{m.SGE(0, size)}, RemoteSTag: r.STag(), Flags: verbs.Signaled}
			var wcs [32]verbs.WC
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for posted, done := 0, 0; done < b.N; {
				for posted < b.N && posted-done < 100 {
					if _, err := x.QP.PostSend(wr); err != nil {
						b.Fatal(err)
					}
					posted++
				}
				n, err := x.CQ.Wait(context.Background(), wcs[:])
				if err != nil || wcs[0].Status != verbs.Success {
					b.Fatal(err, wcs[0].Status)
				}
				done += n
			}
		})
	}
}

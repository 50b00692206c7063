package netstack

import (
	"testing"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/tap"
)

// ghost is a Batch of n octets that it does not care about: what is measured is TCP.
type ghost struct{ n int }

func (g *ghost) Len() int { return g.n }
func (g *ghost) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(p) < g.n {
		return 0, llp.ErrNoRoom
	}
	n := g.n
	g.n = 0
	return n, nil
}

// wires are the devices that benchmarks run over.
var wires = []struct {
	name string
	make func(b *testing.B) (x, y tap.Device)
}{
	{"pipe", func(b *testing.B) (x, y tap.Device) { return testPair(b, 1500, allOffloads) }},
	{"tap", tapPair},
}

// BenchmarkBulk sends super-packets one way.
func BenchmarkBulk(b *testing.B) {
	for _, w := range wires {
		b.Run(w.name, func(b *testing.B) {
			dx, dy := w.make(b)
			s, r := stacksOn(b, dx, dy, Config{})
			x, y := connect(b, s, r, false)
			done := make(chan error, 1)
			total := 0
			const n = 46 * 1420
			b.SetBytes(n)
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				got := 0
				for got < n*b.N {
					bs, err := y.Receive(1, 1<<16)
					if err == llp.ErrWouldBlock {
						err = y.wait()
					}
					if err != nil {
						done <- err
						return
					}
					k := 0
					for _, s := range bs {
						k += len(s)
					}
					got += k
					if k > 0 {
						y.Consume(k)
					}
				}
				done <- nil
			}()
			var g ghost
			for total < n*b.N {
				if r := x.Room(); r.Space < n {
					if err := x.wait(); err != nil {
						b.Fatal(err)
					}
					continue
				}
				g.n = n
				if err := x.Send(&g); err != nil {
					b.Fatal(err)
				}
				total += n
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			st := s.Stats()
			b.ReportMetric(float64(st.TxOctets)/float64(st.TxFrames), "octets/frame")
			b.ReportMetric(float64(st.TCPRetransmits), "retransmits")
			x.Abort()
			y.Abort()
		})
	}
}

// BenchmarkPingPong sends 64 octets to and fro.
func BenchmarkPingPong(b *testing.B) {
	for _, w := range wires {
		b.Run(w.name, func(b *testing.B) {
			dx, dy := w.make(b)
			s, r := stacksOn(b, dx, dy, Config{})
			x, y := connect(b, s, r, false)
			const n = 64
			take := func(z *tester) error {
				for {
					_, err := z.Receive(n, n)
					if err == nil {
						return z.Consume(n)
					}
					if err == llp.ErrWouldBlock {
						err = z.wait()
					}
					if err != nil {
						return err
					}
				}
			}
			done := make(chan error, 1)
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				var g ghost
				for range b.N {
					if err := take(y); err != nil {
						done <- err
						return
					}
					g.n = n
					if err := y.Send(&g); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			var g ghost
			for range b.N {
				g.n = n
				if err := x.Send(&g); err != nil {
					b.Fatal(err)
				}
				if err := take(x); err != nil {
					b.Fatal(err)
				}
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			b.ReportMetric(float64(s.Stats().TxFrames)/float64(b.N), "frames/op")
			x.Abort()
			y.Abort()
		})
	}
}

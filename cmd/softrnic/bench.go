package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/spf13/cobra"
)

// The benchmark's own protocol: the client says in its private data what it will
// do, the server answers with a place in memory. Sends are paced by credits, since
// a receiver without a buffer loses the connection: the server posts 2*depth
// receives and Sends four octets, a number of new ones, after each depth/2.

const benchPort = 18515

// benchKind is a measurement.
type benchKind struct {
	name  string
	op    verbs.Op
	lat   bool
	about string
}

var benchKinds = []benchKind{
	{"write-bw", verbs.OpWrite, false, "Goodput of RDMA Writes, until the last one is in place"},
	{"read-bw", verbs.OpRead, false, "Goodput of RDMA Reads"},
	{"send-bw", verbs.OpSend, false, "Goodput of Sends, until the last one is received"},
	{"write-lat", verbs.OpWrite, true, "Round trip of an RDMA Write and the Read that confirms it"},
	{"read-lat", verbs.OpRead, true, "Round trip of an RDMA Read"},
	{"send-lat", verbs.OpSend, true, "Half of the round trip of a Send and its answer"},
}

type benchOptions struct {
	kind     benchKind
	size     int
	iters    int
	depth    int
	duration time.Duration
	noCRC    bool
	out      format
}

const (
	benchMaxSize  = 64 << 20 // a server holds as much for each client
	benchMaxDepth = 8192
)

func (o *benchOptions) check() error {
	switch {
	case o.size < 1 || o.size > benchMaxSize:
		return usagef("--size %d: 1 to %d octets", o.size, benchMaxSize)
	case o.iters < 1:
		return usagef("--iters %d: at least 1", o.iters)
	case o.depth < 2 || o.depth > benchMaxDepth:
		return usagef("--depth %d: 2 to %d", o.depth, benchMaxDepth)
	case o.duration < 0:
		return usagef("--duration %v: 0 or more", o.duration)
	}
	return nil
}

func newBenchCmd() *cobra.Command {
	var below []*cobra.Command
	for _, k := range benchKinds {
		below = append(below, newBenchKindCmd(k))
	}
	return group("bench", "Measure goodput and latency against softrnic serve bench", below...)
}

func newBenchKindCmd(k benchKind) *cobra.Command {
	var f rnicFlags
	o := benchOptions{kind: k}
	cmd := &cobra.Command{
		Use:   k.name + " ADDR[:PORT]",
		Short: k.about,
		Long: k.about + `, against "softrnic serve bench". Both use one processor each, which is
fastest for one connection; GOMAXPROCS in the environment gives them more.`,
		Args: exactArgs("ADDR[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			addr, err := target(args[0], benchPort)
			if err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return err
			}
			oneProcessor()
			r, closer, err := f.open(cmd.Context())
			if err != nil {
				return err
			}
			return errors.Join(bench(cmd.Context(), r.Device, addr, o, cmd.OutOrStdout()), closer())
		},
	}
	f.add(cmd)
	size, iters := 65536, 5000
	if k.lat {
		size, iters = 64, 10000
	}
	p := cmd.Flags()
	p.IntVarP(&o.size, "size", "s", size, "octets of a message")
	p.IntVarP(&o.iters, "iters", "n", iters, "messages")
	p.DurationVarP(&o.duration, "duration", "D", 0, "go on for this long, instead of --iters")
	p.BoolVar(&o.noCRC, "no-crc", false, "do without CRC32c where the server agrees")
	p.VarP(&o.out, "output", "o", "text or json")
	o.depth = 64
	if !k.lat {
		p.IntVarP(&o.depth, "depth", "t", 64, "messages in flight")
	}
	return cmd
}

// oneProcessor lets this process use one, unless the environment says otherwise:
// the goroutines of one connection hand over to each other fastest on the same one.
// TCP has a worker for each processor there is when the RNIC is opened.
func oneProcessor() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}

// request is the client's private data.
func (o *benchOptions) request() []byte {
	b := append([]byte("srb1"), byte(o.kind.op), 0)
	if o.kind.lat {
		b[5] = 1
	}
	b = binary.BigEndian.AppendUint32(b, uint32(o.size))
	return binary.BigEndian.AppendUint32(b, uint32(o.depth))
}

func parseBenchRequest(b []byte) (o benchOptions, err error) {
	if len(b) != 14 || string(b[:4]) != "srb1" {
		return o, fmt.Errorf("%d octets of private data are no request of softrnic bench", len(b))
	}
	o.kind.op, o.kind.lat = verbs.Op(b[4]), b[5] == 1
	o.size, o.depth, o.iters = int(binary.BigEndian.Uint32(b[6:])), int(binary.BigEndian.Uint32(b[10:])), 1
	if o.kind.op > verbs.OpRead {
		return o, fmt.Errorf("request for operation %d", o.kind.op)
	}
	return o, o.check()
}

// peakWindow is the time over which the peak is taken: long enough that it is not
// the filling of a send buffer.
const peakWindow = 10 * time.Millisecond

// benchEnd is one end of a benchmark.
type benchEnd struct {
	pd     *verbs.PD
	sq, rq *verbs.CQ
	qp     *verbs.QP
	mr     *verbs.MR // size octets, then 8 for credits
}

const (
	creditLen   = 4
	clientRecvs = 16 // receives of a client: more than the server can grant at once
)

func newBenchEnd(d *verbs.Device, o benchOptions) (e *benchEnd, err error) {
	e = &benchEnd{}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.pd, err = d.AllocPD(); err != nil {
		return e, err
	}
	if e.mr, err = e.pd.RegMR(make([]byte, o.size+2*creditLen), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite); err != nil {
		return e, err
	}
	if e.sq, err = d.CreateCQ(o.depth + 8); err != nil {
		return e, err
	}
	if e.rq, err = d.CreateCQ(2*o.depth + clientRecvs); err != nil {
		return e, err
	}
	e.qp, err = e.pd.CreateQP(verbs.QPConfig{SendCQ: e.sq, RecvCQ: e.rq, SignalAll: true, Cap: verbs.QPCap{MaxSendWR: o.depth + 4, MaxRecvWR: 2*o.depth + clientRecvs}})
	return e, err
}

func (e *benchEnd) close() error {
	var errs []error
	if e.qp != nil {
		errs = append(errs, e.qp.Close())
	}
	if e.mr != nil {
		errs = append(errs, e.mr.Dereg())
	}
	for _, c := range []*verbs.CQ{e.sq, e.rq} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close())
	}
	return errors.Join(errs...)
}

func (e *benchEnd) postRecv(n, off, size int) error {
	for range n {
		if _, err := e.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{e.mr.SGE(off, size)}}); err != nil {
			return err
		}
	}
	return nil
}

// benchResult is what bench prints with -o json; of the figures, those of the kind.
type benchResult struct {
	Op         string  `json:"op"`
	Size       int     `json:"size"`
	Iterations int     `json:"iterations"`
	CRC        bool    `json:"crc"`
	EMSS       int     `json:"emss"`
	PeakGbps   float64 `json:"peak_gbps,omitempty"`
	Gbps       float64 `json:"gbps,omitempty"`
	Mpps       float64 `json:"mpps,omitempty"`
	MinUS      float64 `json:"min_us,omitempty"`
	MaxUS      float64 `json:"max_us,omitempty"`
	TypicalUS  float64 `json:"typical_us,omitempty"`
	AvgUS      float64 `json:"avg_us,omitempty"`
	StdevUS    float64 `json:"stdev_us,omitempty"`
	P99US      float64 `json:"p99_us,omitempty"`
	P999US     float64 `json:"p999_us,omitempty"`
}

func bench(ctx context.Context, d *verbs.Device, addr netip.AddrPort, o benchOptions, w io.Writer) (err error) {
	e, err := newBenchEnd(d, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	const wait = 10 * time.Second
	cctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if o.kind.op == verbs.OpSend { // credits, or answers
		size, off := creditLen, o.size
		if o.kind.lat {
			size, off = o.size, 0
		}
		if err := e.postRecv(clientRecvs, off, size); err != nil {
			return err
		}
	}
	info, err := e.qp.Connect(cctx, addr, verbs.ConnParams{PrivateData: o.request(), NoCRC: o.noCRC})
	if err != nil {
		return connectError(err, addr, wait, "softrnic serve bench")
	}
	if len(info.PrivateData) != 4 {
		return fmt.Errorf("%v answers %d octets of private data: is it softrnic serve bench?", addr, len(info.PrivateData))
	}
	far := verbs.STag(binary.BigEndian.Uint32(info.PrivateData))
	res := benchResult{Op: o.kind.name, Size: o.size, CRC: info.CRC, EMSS: info.EMSS}
	if o.kind.lat {
		err = e.latency(ctx, o, far, &res)
	} else {
		err = e.bandwidth(ctx, o, far, &res)
	}
	if err != nil {
		return err
	}
	dctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := e.qp.Disconnect(dctx); err != nil {
		return err
	}
	if o.out.json {
		return printJSON(w, res)
	}
	return res.print(w, o)
}

func (r *benchResult) print(w io.Writer, o benchOptions) error {
	fmt.Fprintf(w, "%s: CRC %s, EMSS %d\n", r.Op, onOff(r.CRC), r.EMSS)
	if o.kind.lat {
		fmt.Fprintln(w, " #bytes  #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  t_stdev[usec]  99% percentile[usec]  99.9% percentile[usec]")
		_, err := fmt.Fprintf(w, " %-7d %-12d %-12.2f %-12.2f %-16.2f %-12.2f %-14.2f %-21.2f %.2f\n",
			r.Size, r.Iterations, r.MinUS, r.MaxUS, r.TypicalUS, r.AvgUS, r.StdevUS, r.P99US, r.P999US)
		return err
	}
	fmt.Fprintln(w, " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
	_, err := fmt.Fprintf(w, " %-10d %-14d %-18.2f %-20.2f %.6f\n", r.Size, r.Iterations, r.PeakGbps, r.Gbps, r.Mpps)
	return err
}

// bandwidth keeps depth messages in flight.
func (e *benchEnd) bandwidth(ctx context.Context, o benchOptions, far verbs.STag, r *benchResult) error {
	wr := verbs.SendWR{Op: o.kind.op, SGL: []verbs.SGE{e.mr.SGE(0, o.size)}, RemoteSTag: far}
	credits := 2 * o.depth
	begin := time.Now()
	mark, marked := begin, 0
	more := func(n int) bool {
		if o.duration > 0 {
			return n%16 != 0 || time.Since(begin) < o.duration
		}
		return n < o.iters
	}
	n, inFlight := 0, 0
	for ; more(n); n++ {
		if inFlight == o.depth {
			if err := completions(ctx, e.sq, o.depth/2); err != nil {
				return e.why(err)
			}
			inFlight -= o.depth / 2
			if now := time.Now(); now.Sub(mark) >= peakWindow {
				r.PeakGbps = max(r.PeakGbps, float64(n-marked)*float64(o.size)*8/float64(now.Sub(mark)))
				mark, marked = now, n
			}
		}
		if o.kind.op == verbs.OpSend {
			if credits == 0 {
				got, err := e.credit(ctx, o)
				if err != nil {
					return e.why(err)
				}
				credits += got
			}
			credits--
		}
		if _, err := e.qp.PostSend(wr); err != nil {
			return e.why(err)
		}
		inFlight++
	}
	if o.kind.op != verbs.OpRead {
		// A Write or Send is complete when TCP has it; a Read behind it comes back when
		// the peer has it.
		if _, err := e.qp.PostSend(verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{e.mr.SGE(0, 1)}, RemoteSTag: far}); err != nil {
			return e.why(err)
		}
		inFlight++
	}
	if err := completions(ctx, e.sq, inFlight); err != nil {
		return e.why(err)
	}
	took := time.Since(begin)
	r.Iterations = n
	r.Gbps = float64(n) * float64(o.size) * 8 / float64(took)
	r.Mpps = float64(n) / float64(took) * 1e3
	r.PeakGbps = max(r.PeakGbps, r.Gbps)
	return nil
}

// credit waits for the server's next grant.
func (e *benchEnd) credit(ctx context.Context, o benchOptions) (int, error) {
	if err := completions(ctx, e.rq, 1); err != nil {
		return 0, err
	}
	var b [creditLen]byte
	e.mr.Load(b[:], o.size)
	return int(binary.BigEndian.Uint32(b[:])), e.postRecv(1, o.size, creditLen)
}

// why prefers the connection's end to the flushed work that tells of it.
func (e *benchEnd) why(err error) error {
	if qerr := e.qp.Err(); qerr != nil {
		return qerr
	}
	return err
}

func (e *benchEnd) latency(ctx context.Context, o benchOptions, far verbs.STag, r *benchResult) error {
	wr := verbs.SendWR{Op: o.kind.op, SGL: []verbs.SGE{e.mr.SGE(0, o.size)}, RemoteSTag: far}
	confirm := verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{e.mr.SGE(o.size, 1)}, RemoteSTag: far}
	h := newHistogram()
	share := time.Duration(1)
	begin := time.Now()
	for n := 0; o.duration > 0 && time.Since(begin) < o.duration || o.duration == 0 && n < o.iters; n++ {
		var err error
		start := time.Now()
		switch o.kind.op {
		case verbs.OpRead:
			if _, err = e.qp.PostSend(wr); err == nil {
				err = completions(ctx, e.sq, 1)
			}
		case verbs.OpWrite:
			if _, err = e.qp.PostSend(wr, confirm); err == nil {
				err = completions(ctx, e.sq, 2)
			}
		default:
			share = 2
			if _, err = e.qp.PostSend(wr); err == nil {
				err = completions(ctx, e.rq, 1)
			}
		}
		h.add(time.Since(start) / share)
		if err == nil && o.kind.op == verbs.OpSend {
			if err = completions(ctx, e.sq, 1); err == nil {
				err = e.postRecv(1, 0, o.size)
			}
		}
		if err != nil {
			return e.why(err)
		}
		r.Iterations = n + 1
	}
	r.MinUS, r.MaxUS, r.TypicalUS, r.AvgUS, r.StdevUS, r.P99US, r.P999US = h.us(0), h.us(100), h.us(50), h.mean(), h.stdev(), h.us(99), h.us(99.9)
	return nil
}

func newServeBenchCmd() *cobra.Command {
	var f rnicFlags
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Serve softrnic bench until interrupted",
		Long: `Serve softrnic bench until interrupted, on one processor, which is fastest for one
client; GOMAXPROCS in the environment gives it more.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			oneProcessor()
			r, closer, err := f.open(cmd.Context())
			if err != nil {
				return err
			}
			return errors.Join(serveBench(cmd.Context(), r.Device, o, cmd.OutOrStdout()), closer())
		},
	}
	f.add(cmd)
	o.add(cmd, benchPort)
	return cmd
}

// serveBench serves any number of clients at once.
func serveBench(ctx context.Context, d *verbs.Device, so serveOptions, w io.Writer) error {
	return serve(ctx, d, so, &lines{w: w}, "bench", func(ctx context.Context, req *verbs.ConnRequest) (string, error) {
		o, err := parseBenchRequest(req.PrivateData())
		if err != nil {
			return "", errors.Join(err, req.Reject(nil))
		}
		e, err := newBenchEnd(d, o)
		if err != nil {
			return "", errors.Join(err, req.Reject(nil))
		}
		defer e.close()
		if o.kind.op == verbs.OpSend {
			if err := e.postRecv(2*o.depth, 0, o.size); err != nil {
				return "", errors.Join(err, req.Reject(nil))
			}
		}
		info, err := req.Accept(e.qp, verbs.ConnParams{PrivateData: binary.BigEndian.AppendUint32(nil, uint32(e.mr.STag())), NoCRC: so.noCRC})
		if err != nil {
			return "", err
		}
		if o.kind.op == verbs.OpSend {
			err = e.answer(ctx, o)
		}
		select { // Writes and Reads are the RNIC's work alone
		case <-e.qp.Done():
			if err == nil {
				err = e.qp.Err()
			}
		case <-ctx.Done():
		}
		return fmt.Sprintf("%v of %d octets, CRC %s", o.kind.op, o.size, onOff(info.CRC)), err
	})
}

// answer receives Sends until the client is done: it grants credits, or sends back.
func (e *benchEnd) answer(ctx context.Context, o benchOptions) error {
	var wcs [64]verbs.WC
	fresh, sends := 0, 0
	// Each grant is the same number, so it is written once, before any is on its way.
	binary.BigEndian.PutUint32(e.mr.Bytes()[o.size:], uint32(max(1, o.depth/2)))
	for {
		n, err := e.rq.Wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Status == verbs.WRFlush {
				return nil // the end, which the QP explains
			} else if wc.Status != verbs.Success {
				return fmt.Errorf("%v: %w", wc.Status, wc.Err)
			}
		}
		if err := e.postRecv(n, 0, o.size); err != nil {
			return err
		}
		fresh += n
		reply := func(off, size int) error {
			if sends == o.depth {
				if err := completions(ctx, e.sq, sends); err != nil {
					return err
				}
				sends = 0
			}
			sends++
			_, err := e.qp.PostSend(verbs.SendWR{SGL: []verbs.SGE{e.mr.SGE(off, size)}})
			return err
		}
		if o.kind.lat {
			for range n {
				if err := reply(0, o.size); err != nil {
					return err
				}
			}
			continue
		}
		for fresh >= max(1, o.depth/2) && err == nil {
			err = reply(o.size, creditLen)
			fresh -= max(1, o.depth/2)
		}
		if err != nil {
			return err
		}
	}
}

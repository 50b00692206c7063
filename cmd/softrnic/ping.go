package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/verbs"
	"github.com/spf13/cobra"
)

type pingOptions struct {
	size, count int
	validate    bool
	verbose     bool
	noCRC       bool
	rev         int
	wait        time.Duration
	out         format
}

func newPingCmd() *cobra.Command {
	var f rnicFlags
	var o pingOptions
	cmd := &cobra.Command{
		Use:   "ping ADDR[:PORT]",
		Short: "Exchange Sends, Reads and Writes with a server: softrnic serve ping, or rping -s",
		Long: `ping is rping's client, on the wire too: the other side may be "softrnic serve ping",
or rdma-core's "rping -s" on any iWARP device. In each round the server Reads the
ping by RDMA and Writes it back.`,
		Args: exactArgs("ADDR[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			addr, err := target(args[0], rpingPort)
			if err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return err
			}
			r, closer, err := f.open(cmd.Context())
			if err != nil {
				return err
			}
			return errors.Join(ping(cmd.Context(), r.Device, addr, o, cmd.OutOrStdout()), closer())
		},
	}
	f.add(cmd)
	p := cmd.Flags()
	p.IntVarP(&o.size, "size", "S", 64, "octets of a ping, 23 to 65535")
	p.IntVarP(&o.count, "count", "C", 10, "rounds")
	p.BoolVarP(&o.validate, "validate", "V", false, "compare every octet that comes back")
	p.BoolVarP(&o.verbose, "verbose", "v", false, "print a line for each round")
	p.BoolVar(&o.noCRC, "no-crc", false, "do without CRC32c where the peer agrees")
	p.IntVar(&o.rev, "mpa-rev", 2, "MPA revision, 1 or 2")
	p.DurationVar(&o.wait, "timeout", 10*time.Second, "for the connection, and for each round")
	p.VarP(&o.out, "output", "o", "text or json")
	return cmd
}

func (o *pingOptions) check() error {
	switch {
	case o.size < rpingMin || o.size > rpingMax:
		return usagef("--size %d: rping takes %d to %d octets", o.size, rpingMin, rpingMax)
	case o.count < 1:
		return usagef("--count %d: at least 1", o.count)
	case o.rev != 1 && o.rev != 2:
		return usagef("--mpa-rev %d: 1 or 2", o.rev)
	case o.wait <= 0:
		return usagef("--timeout %v: more than 0", o.wait)
	}
	return nil
}

// pingResult is what ping prints with -o json.
type pingResult struct {
	Peer      string  `json:"peer"`
	Rounds    int     `json:"rounds"`
	Size      int     `json:"size"`
	CRC       bool    `json:"crc"`
	Validated bool    `json:"validated"`
	MinUS     float64 `json:"min_us"`
	P50US     float64 `json:"p50_us"`
	P99US     float64 `json:"p99_us"`
	MaxUS     float64 `json:"max_us"`
}

// ping runs the client on d.
func ping(ctx context.Context, d *verbs.Device, addr netip.AddrPort, o pingOptions, w io.Writer) (err error) {
	e, err := newEndpoint(d, o.size, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	cctx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	info, err := e.qp.Connect(cctx, addr, verbs.ConnParams{IRD: 1, ORD: 1, NoCRC: o.noCRC, Revision: o.rev})
	if err != nil {
		return connectError(err, addr, o.wait, "softrnic serve ping, or rping -s")
	}
	if !o.out.json {
		fmt.Fprintf(w, "ping %v: %d octets, CRC %s, EMSS %d\n", addr, o.size, onOff(info.CRC), info.EMSS)
	}
	h := newHistogram()
	for n := range o.count {
		rctx, cancel := context.WithTimeout(ctx, o.wait)
		begin := time.Now()
		err := e.round(rctx, n, o.validate)
		took := time.Since(begin)
		cancel()
		if err != nil {
			return fmt.Errorf("ping %v, round %d: %w", addr, n, err)
		}
		h.add(took)
		if o.verbose && !o.out.json {
			fmt.Fprintf(w, "round %d: %v: %.32q\n", n, took.Round(time.Microsecond), e.back.Bytes())
		}
	}
	dctx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	if err := e.qp.Disconnect(dctx); err != nil && ctx.Err() == nil {
		// rping may reset the connection while it cleans up; the rounds are done.
		d.Stats()
	}
	res := pingResult{addr.String(), o.count, o.size, info.CRC, o.validate, h.us(0), h.us(50), h.us(99), h.us(100)}
	if o.out.json {
		return printJSON(w, res)
	}
	checked := "not compared"
	if o.validate {
		checked = "all compared"
	}
	_, err = fmt.Fprintf(w, "%d rounds of %d octets, %s: min %.1f us, median %.1f us, p99 %.1f us, max %.1f us\n", o.count, o.size, checked, res.MinUS, res.P50US, res.P99US, res.MaxUS)
	return err
}

// connectError adds to what kept a client from its server what to do about it.
func connectError(err error, addr netip.AddrPort, wait time.Duration, server string) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%v did not answer in %v: is it up, and on the network of this RNIC's --tap?", addr, wait)
	case errors.Is(err, llp.ErrUnreachable):
		return fmt.Errorf("%w: no --addr, --gateway or neighbour leads there", err)
	case errors.Is(err, llp.ErrRefused):
		return fmt.Errorf("%w: nothing listens there: start %s", err, server)
	}
	return err
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

type serveOptions struct {
	port    int
	count   int
	noCRC   bool
	verbose bool
}

func newServeCmd() *cobra.Command {
	return group("serve", "Serve clients of ping and bench", newServePingCmd(), newServeBenchCmd())
}

// serveFlags adds what servers share.
func (o *serveOptions) add(cmd *cobra.Command, port int) {
	p := cmd.Flags()
	p.IntVarP(&o.port, "port", "p", port, "TCP port")
	p.IntVar(&o.count, "count", 0, "end after this many connections; 0 means never")
	p.BoolVar(&o.noCRC, "no-crc", false, "do without CRC32c where the client does")
	p.BoolVarP(&o.verbose, "verbose", "v", false, "print a line for each round")
	once := p.Bool("once", false, "end after one connection")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *once {
			o.count = 1
		}
		if o.port < 1 || o.port > 65535 {
			return usagef("--port %d: 1 to 65535", o.port)
		}
		if o.count < 0 {
			return usagef("--count %d: 0 or more", o.count)
		}
		return nil
	}
}

func newServePingCmd() *cobra.Command {
	var f rnicFlags
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "ping",
		Short: "Serve softrnic ping, or rping -c, until interrupted",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, closer, err := f.open(cmd.Context())
			if err != nil {
				return err
			}
			return errors.Join(servePing(cmd.Context(), r.Device, o, cmd.OutOrStdout()), closer())
		},
	}
	f.add(cmd)
	o.add(cmd, rpingPort)
	return cmd
}

// servePing serves any number of clients at once.
func servePing(ctx context.Context, d *verbs.Device, o serveOptions, w io.Writer) error {
	out := &lines{w: w}
	return serve(ctx, d, o, out, "ping", func(ctx context.Context, req *verbs.ConnRequest) (string, error) {
		e, err := newEndpoint(d, rpingMax, false)
		if err != nil {
			return "", errors.Join(err, req.Reject(nil))
		}
		defer e.close()
		info, err := req.Accept(e.qp, verbs.ConnParams{IRD: 1, ORD: 1, NoCRC: o.noCRC})
		if err != nil {
			return "", err
		}
		var each func(int, []byte)
		if o.verbose {
			each = func(n int, data []byte) { out.printf("%v: round %d: %.32q\n", info.Remote, n, data) }
		}
		rounds, err := e.serve(ctx, each)
		if err == nil {
			dctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_ = e.qp.Disconnect(dctx) // the client may be gone; it had all it wanted
		}
		return fmt.Sprintf("%d rounds, CRC %s", rounds, onOff(info.CRC)), err
	})
}

// lines lets several goroutines print whole lines.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.w, format, args...)
}

// serve accepts connections and runs one for each, until ctx ends or o.count have
// been served. A connection that fails is a line, and no error of the server's.
func serve(ctx context.Context, d *verbs.Device, o serveOptions, out *lines, what string, one func(context.Context, *verbs.ConnRequest) (string, error)) error {
	l, err := d.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(o.port)), verbs.ListenConfig{})
	if err != nil {
		return err
	}
	defer l.Close()
	out.printf("softrnic serve %s: listening on port %d\n", what, o.port)
	var wg sync.WaitGroup
	defer wg.Wait()
	var failed error
	var mu sync.Mutex
	for n := 0; o.count == 0 || n < o.count; n++ {
		req, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil // interrupted, as servers are
			}
			return err
		}
		wg.Go(func() {
			peer := req.RemoteAddr()
			did, err := one(ctx, req)
			if err != nil && ctx.Err() == nil {
				out.printf("%v: %s\n", peer, oneLine(err))
				mu.Lock()
				failed = err
				mu.Unlock()
				return
			}
			out.printf("%v: %s\n", peer, did)
		})
	}
	wg.Wait()
	if o.count == 1 {
		return failed
	}
	return nil
}

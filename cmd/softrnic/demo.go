package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/softrnic/softrnic"
	"github.com/softrnic/softrnic/tap/taptest"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// demoOptions are the demo's.
type demoOptions struct {
	mib    int
	mtu    int
	memory bool
	noCRC  bool
	out    format
}

func newDemoCmd() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show two RNICs exchange verified Writes, Reads and Sends",
		Long: `demo makes two RNICs, lets one Write, Read and Send to the other, and compares
SHA-256 sums that both ends compute on their own.

Where it may (as root, or in a user namespace where /dev/net/tun can be opened), each
RNIC is a process in a network namespace of its own, with a TAP on a Linux bridge,
and a veth pair joins the bridges. Otherwise the Ethernet between the two processes is in
memory (on other systems than Linux, in one process). It says which, and leaves
nothing behind.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.mib < 1 || o.mib > 4096 {
				return usagef("--mib %d: 1 to 4096", o.mib)
			}
			if o.mtu < 576 || o.mtu > 65521 {
				return usagef("--mtu %d: 576 to 65521", o.mtu)
			}
			return demo(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	p := cmd.Flags()
	p.IntVar(&o.mib, "mib", 256, "MiB to move by each operation")
	p.IntVar(&o.mtu, "mtu", 1500, "MTU of the wire")
	p.BoolVar(&o.memory, "memory", false, "do without TAPs even where there could be some")
	p.BoolVar(&o.noCRC, "no-crc", false, "do without CRC32c")
	p.VarP(&o.out, "output", "o", "text or json")
	return cmd
}

// demoResult is what demo prints with -o json.
type demoResult struct {
	Verified  bool     `json:"verified"`
	Path      string   `json:"path"`
	Processes int      `json:"processes"`
	CRC       bool     `json:"crc"`
	MTU       int      `json:"mtu"`
	Ops       []demoOp `json:"ops"`
}

type demoOp struct {
	Op     string  `json:"op"`
	Bytes  int64   `json:"bytes"`
	Gbps   float64 `json:"gbps"`
	P50US  float64 `json:"p50_us"` // of 64 octets
	P99US  float64 `json:"p99_us"`
	SHA256 string  `json:"sha256"` // as both ends computed it
}

var demoAddrs = [2]netip.Prefix{netip.MustParsePrefix("10.99.0.1/24"), netip.MustParsePrefix("10.99.0.2/24")}

func demo(ctx context.Context, o demoOptions, w, errw io.Writer) error {
	if !o.memory {
		switch err := demoTAP(ctx, o, w, errw); {
		case errors.Is(err, errNoLab):
			fmt.Fprintf(errw, "softrnic demo: no TAPs here, the Ethernet will be in memory: %s\n", oneLine(err))
		case ctx.Err() != nil:
			return errInterrupted
		default:
			return err
		}
	}
	err := demoOffTAP(ctx, o, w, errw)
	if ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

var errInterrupted = errors.New("demo: interrupted; nothing is left behind")

// errNoLab says that this process may not make namespaces or TAPs.
var errNoLab = errors.New("cannot make a network of its own")

// demoMemory runs both RNICs in this process, where two cannot be.
func demoMemory(ctx context.Context, o demoOptions, w, errw io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	da, db := taptest.Pipe(taptest.Options{MTU: o.mtu})
	var peers [2]*remote
	ended := make(chan error, 2)
	for i, cfg := range []softrnic.Config{{Device: da, Addrs: demoAddrs[:1]}, {Device: db, Addrs: demoAddrs[1:]}} {
		cr, cw := io.Pipe()
		rr, rw := io.Pipe()
		peers[i] = newRemote(cw, rr)
		go func() {
			err := demoPeer(ctx, cfg, i == 0, o, cr, rw)
			_ = rw.CloseWithError(errors.Join(err, io.EOF))
			_ = cr.CloseWithError(io.ErrClosedPipe)
			ended <- err
		}()
	}
	stop := context.AfterFunc(ctx, func() { peers[0].close(); peers[1].close() })
	defer stop()
	err := demoRun(ctx, peers, "memory", 1, o, w, errw)
	peers[0].close()
	peers[1].close()
	return errors.Join(err, <-ended, <-ended)
}

// remote is a demoPeer at the other end of a pair of pipes.
type remote struct {
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

func newRemote(in io.WriteCloser, out io.Reader) *remote {
	return &remote{in, json.NewEncoder(in), json.NewDecoder(out)}
}

func (r *remote) close() { r.in.Close() }

type demoCommand struct {
	Do string `json:"do"`
}

type demoReply struct {
	Done   int64   `json:"done,omitempty"` // octets so far; not the last reply
	SHA256 string  `json:"sha256,omitempty"`
	Gbps   float64 `json:"gbps,omitempty"`
	P50US  float64 `json:"p50_us,omitempty"`
	P99US  float64 `json:"p99_us,omitempty"`
	CRC    bool    `json:"crc,omitempty"`
	Err    string  `json:"err,omitempty"`
}

// call lets the peer do something and waits until it is done.
func (r *remote) call(what string, progress func(int64)) (demoReply, error) {
	if err := r.enc.Encode(demoCommand{what}); err != nil {
		return demoReply{}, fmt.Errorf("demo: %s: the RNIC is gone: %w", what, err)
	}
	for {
		var reply demoReply
		if err := r.dec.Decode(&reply); err != nil {
			return reply, fmt.Errorf("demo: %s: the RNIC is gone: %w", what, err)
		}
		switch {
		case reply.Err != "":
			return reply, fmt.Errorf("demo: %s: %s", what, reply.Err)
		case reply.Done > 0:
			if progress != nil {
				progress(reply.Done)
			}
		default:
			return reply, nil
		}
	}
}

// demoRun conducts the two peers and prints what came of it.
func demoRun(ctx context.Context, peers [2]*remote, path string, processes int, o demoOptions, w, errw io.Writer) error {
	client, server := peers[0], peers[1]
	size := int64(o.mib) << 20
	res := demoResult{Verified: true, Path: path, Processes: processes, MTU: o.mtu}
	if _, err := server.call("open", nil); err != nil {
		return err
	}
	up, err := client.call("open", nil)
	if err != nil {
		return err
	}
	if _, err := server.call("accepted", nil); err != nil {
		return err
	}
	res.CRC = up.CRC
	for _, op := range []struct {
		name             string
		from, to         *remote
		before, after    string // of the server's
		latBefore, latOf string
	}{
		{"write", client, server, "", "", "", "lat-write"},
		{"read", server, client, "", "", "", "lat-read"},
		{"send", client, server, "recv", "recv-wait", "echo", "lat-send"},
	} {
		progress, finish := progressOf(errw, op.name, size)
		fail := func(err error) error {
			finish()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		filled, err := op.from.call("fill", nil)
		if err != nil {
			return fail(err)
		}
		if _, err := op.to.call("wipe", nil); err != nil {
			return fail(err)
		}
		if op.before != "" {
			if _, err := server.call(op.before, nil); err != nil {
				return fail(err)
			}
		}
		moved, err := client.call(op.name, progress)
		if err != nil {
			return fail(err)
		}
		if op.after != "" {
			if _, err := server.call(op.after, nil); err != nil {
				return fail(err)
			}
		}
		arrived, err := op.to.call("hash", nil)
		if err != nil {
			return fail(err)
		}
		if op.latBefore != "" {
			if _, err := server.call(op.latBefore, nil); err != nil {
				return fail(err)
			}
		}
		lat, err := client.call(op.latOf, nil)
		if err != nil {
			return fail(err)
		}
		finish()
		res.Ops = append(res.Ops, demoOp{op.name, size, moved.Gbps, lat.P50US, lat.P99US, arrived.SHA256})
		if arrived.SHA256 != filled.SHA256 {
			res.Verified = false
		}
	}
	for _, p := range []*remote{client, server} {
		if _, err := p.call("close", nil); err != nil {
			return err
		}
	}
	if o.out.json {
		err = printJSON(w, res)
	} else {
		err = res.print(w)
	}
	if err == nil && !res.Verified {
		err = errors.New("demo: what arrived is not what was sent")
	}
	return err
}

func (r *demoResult) print(w io.Writer) error {
	path := "two processes, each with a TAP on a bridge in a network namespace of its own"
	if r.Path != "tap" {
		path = [...]string{"one process", "two processes"}[r.Processes-1] + ", Ethernet in memory"
	}
	fmt.Fprintf(w, "SoftRNIC: %s; MTU %d, CRC32c %s\n\n", path, r.MTU, onOff(r.CRC))
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "operation\tbytes\tGb/s\t64 B: p50 us\tp99 us\tSHA-256, both ends\t")
	for _, op := range r.Ops {
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.1f\t%.1f\t%.16s...\t\n", op.Op, op.Bytes, op.Gbps, op.P50US, op.P99US, op.SHA256)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	verdict := "verified: every octet arrived as it was sent"
	if !r.Verified {
		verdict = "NOT verified: the sums of the two ends differ"
	}
	_, err := fmt.Fprintf(w, "\n%s\n", verdict)
	return err
}

// progressOf draws a bar where w is a terminal.
func progressOf(w io.Writer, what string, total int64) (progress func(int64), finish func()) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions64(total, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(fmt.Sprintf("%-5s", what)),
		progressbar.OptionSetPredictTime(false), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(50*time.Millisecond))
	return func(n int64) { _ = bar.Set64(n) }, func() { _ = bar.Clear() }
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/capture"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/dissect"
	"github.com/spf13/cobra"
)

type decodeOptions struct {
	name string // of the capture, for messages
	in   io.Reader
	out  io.Writer
	err  io.Writer // notes
	json bool
}

func newDecodeCmd() *cobra.Command {
	var o format
	cmd := &cobra.Command{
		Use:   "decode FILE",
		Short: "Print the MPA frames and FPDUs in a capture",
		Long: `Print one line for each MPA Request, MPA Reply and FPDU in a capture (pcap or
pcapng; - is standard input), with its DDP and RDMAP headers. TCP segments are put
in order first. CRC and markers follow from each connection's startup; where a
capture begins within a connection, or lacks packets, the next FPDU with a right CRC
is looked for. What could not be read is said on stderr.

With -o json each line is one object: frame time src dst kind (mpa-request,
mpa-reply, fpdu), and for an FPDU opcode, len (octets of payload), crc (ok, bad,
off), last, ulpdu; stag and to where it is tagged, qn msn mo where it is not.
Numbers are decimal; lengths are in octets.`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			d := decodeOptions{name: args[0], in: cmd.InOrStdin(), out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), json: o.json}
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return usagef("%w: give a pcap or pcapng file, or - for standard input", err)
				}
				defer f.Close()
				d.in = f
			}
			return decode(cmd.Context(), d)
		},
	}
	cmd.Flags().VarP(&o, "output", "o", "text or json")
	return cmd
}

// decode prints what is in a capture. It reads until its end, or until ctx ends.
func decode(ctx context.Context, o decodeOptions) error {
	out := bufio.NewWriter(o.out)
	in := flushingReader{interruptible(ctx, o.in), out}
	r, err := capture.NewReader(in)
	if err != nil {
		if errors.Is(err, capture.ErrFormat) {
			return usagef("%s: %w", o.name, err)
		}
		return fmt.Errorf("%s: %w", o.name, err)
	}
	var begin time.Time
	d := dissect.Decoder{
		Emit: func(r *dissect.Record) error {
			if o.json {
				return printJSON(out, r)
			}
			if begin.IsZero() {
				begin = r.Time
			}
			_, err := fmt.Fprintf(out, "%6d %11.6f  %s\n", r.Frame, r.Time.Sub(begin).Seconds(), r)
			return err
		},
		Note: func(frame int, text string) { fmt.Fprintf(o.err, "packet %d: %s\n", frame, text) },
	}
	n, err := d.Decode(r)
	if err != nil {
		err = fmt.Errorf("%s: %w", o.name, err)
	}
	if e := out.Flush(); e != nil {
		return fmt.Errorf("write: %w", e)
	}
	summary(o, n)
	return err
}

// summary says what was there and could not be shown.
func summary(o decodeOptions, n dissect.Counts) {
	for _, s := range []struct {
		n    int
		what string
	}{
		{n.UnknownLink, "packets of a link type that is not known: capture on Ethernet, loopback or \"any\""},
		{n.Truncated, "packets captured without all their headers: capture whole packets (tcpdump -s 0)"},
		{n.Fragments, "IP fragments passed over"},
		{n.Unread, "directions of TCP connections were under way when the capture began, and show no FPDU with a CRC: start the capture before the connection"},
	} {
		if s.n > 0 {
			fmt.Fprintf(o.err, "%s: %d %s\n", o.name, s.n, s.what)
		}
	}
	if n.Records == 0 {
		fmt.Fprintf(o.err, "%s: no MPA in %d packets, %d of them TCP\n", o.name, n.Packets, n.TCP)
	}
}

// interruptible returns r that ends with ctx, even where r blocks, as a pipe or a
// terminal may.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	pr, pw := io.Pipe()
	go func() {
		_, err := io.Copy(pw, r)
		pw.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { pr.CloseWithError(ctx.Err()) })
	return pr
}

// flushingReader flushes the output before it may wait for input, so that a live
// capture is shown as it comes.
type flushingReader struct {
	io.Reader
	out *bufio.Writer
}

func (f flushingReader) Read(p []byte) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err
	}
	return f.Reader.Read(p)
}

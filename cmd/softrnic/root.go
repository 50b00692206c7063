package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"github.com/softrnic/softrnic"
	"github.com/softrnic/softrnic/tap"
	"github.com/spf13/cobra"
)

func newRootCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "softrnic",
		Short: "An RDMA NIC (iWARP) in software, on a TAP",
		Long: `softrnic turns an Ethernet device into an RDMA NIC: it owns a TAP, runs a TCP/IP
stack of its own on it, and iWARP (RFC 5040, 5041, 5044, 6581) on that.

Results go to stdout, logs to stderr. Exit codes: 0 all went well; 1 something
failed; 2 wrong usage, and nothing was made or changed.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmd.Help()
		},
	}
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%w: see softrnic %s --help", err, strings.TrimPrefix(c.CommandPath(), "softrnic "))
	})
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.AddCommand(newDemoCmd(), newPingCmd(), newServeCmd(), newBenchCmd(), newDecodeCmd(), newTapCmd(), newBridgeCmd(), newVersionCmd())
	return cmd
}

// noArgs and the like are cobra's, as usage errors.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unknown argument %q: see %s --help", args[0], cmd.CommandPath())
	}
	return nil
}

func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return usagef("%s takes %d argument(s), %s; %d given", cmd.CommandPath(), len(names), strings.Join(names, " "), len(args))
	}
}

// group is a command that only has others below it.
func group(use, short string, below ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return usagef("%s needs a command: see %s --help", cmd.CommandPath(), cmd.CommandPath())
		}}
	cmd.AddCommand(below...)
	return cmd
}

// format is the value of -o.
type format struct{ json bool }

func (f *format) String() string {
	if f.json {
		return "json"
	}
	return "text"
}
func (f *format) Type() string { return "text|json" }
func (f *format) Set(s string) error {
	switch s {
	case "json", "text":
		f.json = s == "json"
		return nil
	}
	return fmt.Errorf("%q is neither text nor json", s)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func newVersionCmd() *cobra.Command {
	var o format
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: noArgs, RunE: func(cmd *cobra.Command, args []string) error {
		if o.json {
			return printJSON(cmd.OutOrStdout(), map[string]string{"version": version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "softrnic %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	}}
	cmd.Flags().VarP(&o, "output", "o", "text or json")
	return cmd
}

// rnicFlags are shared by all commands that open an RNIC.
type rnicFlags struct {
	tap      string
	tapFD    int
	addrs    []string
	mac      string
	mtu      int
	gateways []string
	vlan     int
	pcap     string
	logLevel string
}

func (f *rnicFlags) add(cmd *cobra.Command) {
	p := cmd.Flags()
	p.StringVar(&f.tap, "tap", "", "TAP or macvtap interface: created when absent, attached to when present")
	p.IntVar(&f.tapFD, "tap-fd", -1, "inherited descriptor of a TAP, instead of --tap")
	p.StringArrayVar(&f.addrs, "addr", nil, "address of the RNIC with its subnet, such as 10.0.0.2/24 or fd00::2/64 (repeatable)")
	p.StringVar(&f.mac, "mac", "", "Ethernet address of the RNIC (default: one of its own, or the macvtap's)")
	p.IntVar(&f.mtu, "mtu", 0, "largest IP packet in octets, 576 to 65521 (default: the interface's)")
	p.StringArrayVar(&f.gateways, "gateway", nil, "default route, one per family (repeatable)")
	p.IntVar(&f.vlan, "vlan", 0, "802.1Q tag of all frames, 1 to 4094")
	p.StringVar(&f.pcap, "pcap", "", "write all frames to this file, in pcap format")
	p.StringVar(&f.logLevel, "log-level", "warn", "debug, info, warn or error")
}

// config turns the flags into a Config without making or opening anything.
func (f *rnicFlags) config() (softrnic.Config, error) {
	var c softrnic.Config
	bad := func(flag, value, why string) (softrnic.Config, error) {
		return c, usagef("--%s %s: %s", flag, value, why)
	}
	switch {
	case f.tap == "" && f.tapFD < 0:
		return c, usagef("which Ethernet device? give --tap NAME, or --tap-fd N")
	case f.tap != "" && f.tapFD >= 0:
		return c, usagef("--tap %s and --tap-fd %d exclude each other", f.tap, f.tapFD)
	case len(f.addrs) == 0:
		return c, usagef("which address? give --addr, such as --addr 10.0.0.2/24")
	}
	if f.tap != "" {
		if err := (tap.Config{Name: f.tap}).Check(); err != nil {
			return bad("tap", f.tap, err.Error())
		}
		c.TAP = f.tap
	} else {
		c.TAPFD, c.UseFD = f.tapFD, true
	}
	for _, a := range f.addrs {
		p, err := netip.ParsePrefix(a)
		if err != nil {
			return bad("addr", a, "not an address with a subnet length, such as 10.0.0.2/24")
		}
		c.Addrs = append(c.Addrs, p)
	}
	for _, g := range f.gateways {
		a, err := netip.ParseAddr(g)
		if err != nil {
			return bad("gateway", g, "not an IP address")
		}
		c.Gateways = append(c.Gateways, a)
	}
	if f.mac != "" {
		m, err := net.ParseMAC(f.mac)
		if err != nil || len(m) != 6 || m[0]&1 != 0 {
			return bad("mac", f.mac, "not a unicast Ethernet address, such as 02:00:00:00:00:01")
		}
		c.MAC = m
	}
	if f.mtu != 0 && (f.mtu < 576 || f.mtu > 65521) {
		return bad("mtu", fmt.Sprint(f.mtu), "not from 576 to 65521")
	}
	c.MTU = f.mtu
	if f.vlan < 0 || f.vlan > 4094 {
		return bad("vlan", fmt.Sprint(f.vlan), "not from 1 to 4094")
	}
	c.VLAN = uint16(f.vlan)
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return bad("log-level", f.logLevel, "debug, info, warn or error")
	}
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	return c, nil
}

// open opens the RNIC that the flags describe; close it with the function returned.
func (f *rnicFlags) open(ctx context.Context) (*softrnic.RNIC, func() error, error) {
	c, err := f.config()
	if err != nil {
		return nil, nil, err
	}
	if err := softrnic.Check(c); err != nil {
		return nil, nil, &usageError{err}
	}
	var file *pcapFile
	if f.pcap != "" {
		if file, err = createPCAP(f.pcap); err != nil {
			return nil, nil, usagef("--pcap %s: %w", f.pcap, err)
		}
		c.PCAP = file
	}
	r, err := softrnic.Open(ctx, c)
	if err != nil {
		if file != nil {
			err = errors.Join(err, file.discard())
		}
		if errors.Is(err, tap.ErrName) || errors.Is(err, tap.ErrNotTAP) || errors.Is(err, tap.ErrMTU) {
			err = &usageError{err} // it was the wrong thing to name, and nothing was made
		}
		return nil, nil, err
	}
	return r, func() error {
		err := r.Close()
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return err
	}, nil
}

// target parses ADDR or ADDR:PORT.
func target(s string, port uint16) (netip.AddrPort, error) {
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	if a, err := netip.ParseAddr(bare); err == nil {
		return netip.AddrPortFrom(a, port), nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil || ap.Port() == 0 {
		return ap, usagef("%q is no address: give ADDR, ADDR:PORT or [ADDR6]:PORT", s)
	}
	return ap, nil
}

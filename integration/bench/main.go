// Command bench measures RDMA Write goodput and the round trip of a short RDMA
// Read beside two things that they stand on or compete with, over the same
// Linux bridge and in the same run: TCP of netstack alone (the same link
// endpoint, no iWARP), and the kernel's TCP sockets.
//
// Contestants take turns, round by round, so that what else the machine does
// hits all of them alike; figures are medians with the least and the greatest.
// Each side of each contestant is a process of its own with GOMAXPROCS=1. It
// needs root, for a network namespace that is gone afterwards. It compares; it
// never passes or fails by a figure.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/softrnic/softrnic/integration/internal/netns"
)

// options are what the whole run, and each process of it, is told.
type options struct {
	rounds   int
	duration time.Duration
	size     int
	mtu      int
	only     string
	json     bool
	profile  string
}

func (o *options) bind(f *flag.FlagSet) {
	f.IntVar(&o.rounds, "rounds", 5, "turns of each contestant")
	f.DurationVar(&o.duration, "duration", 2*time.Second, "length of one measurement")
	f.IntVar(&o.size, "size", 1<<20, "octets of a message in the bulk measurements")
	f.IntVar(&o.mtu, "mtu", 1500, "MTU of TAPs and veths, octets")
	f.StringVar(&o.only, "only", "", "only contestants whose name contains this")
	f.StringVar(&o.profile, "profile", "", "write a CPU profile of each process to this folder, the last round's")
	f.BoolVar(&o.json, "json", false, "print every sample as JSON, no table")
}

// contestant is one thing that is measured, as a pair of processes.
type contestant struct {
	name string
	kind string // "kernel", "netstack" or "rdma"
	ping bool   // a round trip, not bulk
	crc  bool
	busy bool // the server's program computes, with two goroutines per P
}

func contestants() []contestant {
	return []contestant{
		{name: "kernel TCP", kind: "kernel"},
		{name: "netstack TCP", kind: "netstack"},
		{name: "RDMA Write, CRC", kind: "rdma", crc: true},
		{name: "RDMA Write, no CRC", kind: "rdma"},
		{name: "kernel TCP echo", kind: "kernel", ping: true},
		{name: "netstack TCP echo", kind: "netstack", ping: true},
		{name: "RDMA Read, CRC", kind: "rdma", ping: true, crc: true},
		{name: "RDMA Read, no CRC", kind: "rdma", ping: true},
		{name: "RDMA Read, target computing", kind: "rdma", ping: true, crc: true, busy: true},
	}
}

// The two ends. The RNICs' are TAPs, the kernel's veths, all on one bridge.
var (
	rnicAddr   = [2]netip.Prefix{netip.MustParsePrefix("10.78.0.1/24"), netip.MustParsePrefix("10.78.0.2/24")}
	kernelAddr = [2]netip.Prefix{netip.MustParsePrefix("10.79.0.1/24"), netip.MustParsePrefix("10.79.0.2/24")}
	taps       = [2]string{"tapS", "tapC"}
)

const port = 7777

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "role" {
		return role(args[1:])
	}
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	o.bind(f)
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	lab, err := netns.New()
	if err != nil {
		return err
	}
	defer lab.Close()
	var hosts [2]func(func() error) error
	for i := range 2 {
		if err := lab.TAP(taps[i], o.mtu); err != nil {
			return err
		}
		if hosts[i], err = lab.Host(fmt.Sprintf("veth%d", i), o.mtu, kernelAddr[i]); err != nil {
			return err
		}
	}
	type sample struct {
		Contestant string `json:"contestant"`
		Round      int    `json:"round"`
		Client     result `json:"client"`
		Server     result `json:"server"`
	}
	samples := map[string][]sample{}
	for round := range o.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, o.rounds)
		for _, c := range contestants() {
			if !strings.Contains(c.name, o.only) {
				continue
			}
			where := [2]func(func() error) error{lab.Do, lab.Do}
			if c.kind == "kernel" {
				where = hosts
			}
			s := sample{Contestant: c.name, Round: round}
			if s.Server, s.Client, err = pair(o, c, where); err != nil {
				return fmt.Errorf("%s, round %d: %w", c.name, round+1, err)
			}
			samples[c.name] = append(samples[c.name], s)
			if o.json {
				if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
					return err
				}
			}
		}
	}
	if o.json {
		return nil
	}
	fmt.Println()
	column := func(name string, get func(c, s result) float64) []float64 {
		var v []float64
		for _, s := range samples[name] {
			v = append(v, get(s.Client, s.Server))
		}
		return v
	}
	fmt.Printf("%d rounds of %v each, interleaved; MTU %d; %d octets a message; %s, %d CPUs, GOMAXPROCS=1 per process\n\n",
		o.rounds, o.duration, o.mtu, o.size, runtime.Version(), runtime.NumCPU())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "bulk\tGb/s median\tleast\tmost\tx kernel\tx netstack\tCPU ns/KiB tx\trx\t")
	gbps := func(c, s result) float64 { return c.Gbps }
	ratio := func(name, base string, get func(c, s result) float64) string {
		// Rounds are compared one by one, so that the machine's load cancels out.
		a, b := column(name, get), column(base, get)
		var r []float64
		for i := range min(len(a), len(b)) {
			if b[i] > 0 {
				r = append(r, a[i]/b[i])
			}
		}
		if len(r) == 0 {
			return "-"
		}
		mid, _, _ := median(r)
		return fmt.Sprintf("%.2f", mid)
	}
	for _, c := range contestants() {
		if v := column(c.name, gbps); !c.ping && len(v) > 0 {
			mid, least, most := median(v)
			tx, _, _ := median(column(c.name, func(c, s result) float64 { return c.NsKiB }))
			rx, _, _ := median(column(c.name, func(c, s result) float64 { return s.NsKiB }))
			fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t%s\t%s\t%.0f\t%.0f\t\n", c.name, mid, least, most,
				ratio(c.name, "kernel TCP", gbps), ratio(c.name, "netstack TCP", gbps), tx, rx)
		}
	}
	w.Flush()
	fmt.Println()
	w = tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d octets\tp50 us median\tleast\tmost\tx kernel\tx netstack\tp99 us\tmin us\t\n", pingLen)
	p50 := func(c, s result) float64 { return c.P50 }
	for _, c := range contestants() {
		if v := column(c.name, p50); c.ping && len(v) > 0 {
			mid, least, most := median(v)
			p99, _, _ := median(column(c.name, func(c, s result) float64 { return c.P99 }))
			_, best, _ := median(column(c.name, func(c, s result) float64 { return c.Min }))
			fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%s\t%s\t%.1f\t%.1f\t\n", c.name, mid, least, most,
				ratio(c.name, "kernel TCP echo", p50), ratio(c.name, "netstack TCP echo", p50), p99, best)
		}
	}
	return w.Flush()
}

// pair runs one measurement: the server's process, then the client's.
func pair(o options, c contestant, where [2]func(func() error) error) (server, client result, err error) {
	self, err := os.Executable()
	if err != nil {
		return
	}
	command := func(side string) *exec.Cmd {
		cmd := exec.Command(self, "role", side, "-kind", c.kind, fmt.Sprintf("-ping=%v", c.ping), fmt.Sprintf("-crc=%v", c.crc), fmt.Sprintf("-busy=%v", c.busy),
			"-duration", o.duration.String(), "-size", fmt.Sprint(o.size), "-mtu", fmt.Sprint(o.mtu))
		if o.profile != "" {
			cmd.Args = append(cmd.Args, "-profile", filepath.Join(o.profile, strings.NewReplacer(" ", "-", ",", "").Replace(c.name)+"-"+side+".pprof"))
		}
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		return cmd
	}
	s := command("server")
	out, err := s.StdoutPipe()
	if err != nil {
		return
	}
	if err = where[0](s.Start); err != nil {
		return
	}
	defer func() {
		if err != nil {
			s.Process.Kill()
		}
		if e := s.Wait(); err == nil {
			err = e
		}
	}()
	lines := bufio.NewReader(out)
	if word, e := lines.ReadString('\n'); word != "ready\n" {
		return server, client, fmt.Errorf("the server said %q, %v", word, e)
	}
	cl := command("client")
	var b []byte
	clOut, err := cl.StdoutPipe()
	if err != nil {
		return
	}
	if err = where[1](cl.Start); err != nil {
		return
	}
	b, err = io.ReadAll(clOut)
	if e := cl.Wait(); e != nil {
		return server, client, fmt.Errorf("client: %w", e)
	}
	if err != nil {
		return
	}
	if err = json.Unmarshal(b, &client); err != nil {
		return server, client, fmt.Errorf("the client said %q: %w", b, err)
	}
	b, err = io.ReadAll(lines)
	if err == nil {
		err = json.Unmarshal(b, &server)
	}
	if client.Total > 0 {
		server.NsKiB = float64(server.CPU) / (float64(client.Total) / 1024)
	}
	return
}

// role is what a process of its own does: one side of one measurement.
func role(args []string) error {
	if len(args) == 0 {
		return errors.New("no role")
	}
	var o options
	var c contestant
	f := flag.NewFlagSet("role", flag.ContinueOnError)
	o.bind(f)
	f.StringVar(&c.kind, "kind", "", "")
	f.BoolVar(&c.ping, "ping", false, "")
	f.BoolVar(&c.crc, "crc", false, "")
	f.BoolVar(&c.busy, "busy", false, "")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if o.profile != "" {
		w, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer w.Close()
		if err := pprof.StartCPUProfile(w); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	var r result
	var err error
	ready := func() { fmt.Println("ready") }
	switch c.kind + " " + args[0] {
	case "kernel server":
		err = kernelServer(o, ready)
	case "kernel client":
		r, err = kernelClient(o, c)
	case "netstack server":
		err = netstackServer(o, ready)
	case "netstack client":
		r, err = netstackClient(o, c)
	case "rdma server":
		err = rdmaServer(o, c, ready)
	case "rdma client":
		r, err = rdmaClient(o, c)
	default:
		err = fmt.Errorf("no such role: %q", args)
	}
	if err != nil {
		return err
	}
	r.CPU = int64(cpuTime())
	return json.NewEncoder(os.Stdout).Encode(r)
}

package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/integration/internal/siw"
)

// rounds of rping in each of TestSiw's exchanges.
const siwRounds = 1000

// TestSiw exchanges pings with Linux's siw, booted once in a QEMU guest: Debian's
// rping against `softrnic serve ping`, and `softrnic ping` against rping's
// server, with CRC and without, in the shortest and the longest size. Both sides
// check every octet that comes back.
func TestSiw(t *testing.T) {
	g := siwGuest(t)
	for _, crc := range []bool{true, false} {
		for _, size := range []int{64, 65535} {
			name := fmt.Sprintf("crc=%v/size=%d", crc, size)
			t.Run("rping-to-us/"+name, func(t *testing.T) { rpingToUs(t, g, crc, size) })
			t.Run("us-to-rping/"+name, func(t *testing.T) { usToRping(t, g, crc, size) })
		}
	}
}

// siwGuest boots the guest.
func siwGuest(t *testing.T) *siw.Guest {
	if os.Getenv("SOFTRNIC_SIW") == "" {
		missing(t, "a guest: `make test-siw` builds its image, and sets SOFTRNIC_SIW")
	}
	if os.Getuid() != 0 {
		missing(t, "root, for a bridge and TAPs")
	}
	for _, p := range []string{"qemu-system-x86_64", "ip", "python3"} {
		if _, err := exec.LookPath(p); err != nil {
			missing(t, "%s: apt-get install qemu-system-x86 iproute2 python3", p)
		}
	}
	kit, err := siw.Find(repoRoot(t))
	if err != nil {
		missing(t, "%v", err)
	}
	begin := time.Now()
	g, err := siw.Boot(kit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the guest's console ends with:\n%s", g.Log())
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("guest up after %v", time.Since(begin).Round(time.Millisecond))
	return g
}

// guestCRC makes siw ask for CRC, or not. A responder does what it is asked.
func guestCRC(t *testing.T, g *siw.Guest, on bool) {
	v := "N"
	if on {
		v = "Y"
	}
	if _, err := g.Exec(10*time.Second, "echo "+v+" >/sys/module/siw/parameters/mpa_crc_required"); err != nil {
		t.Fatal(err)
	}
}

// ourFlags are the flags of an RNIC of ours beside the guest. Short exchanges are
// captured in the file returned.
func ourFlags(t *testing.T, crc bool, size int) (flags []string, pcap string) {
	// One MAC, as a NIC has: the guest remembers it from one exchange to the next.
	flags = []string{"--tap", siw.OurTAP, "--addr", siw.OurAddr + siw.PrefixLen, "--mac", "02:00:00:00:77:03"}
	if !crc {
		flags = append(flags, "--no-crc")
	}
	if size < 1000 {
		pcap = filepath.Join(t.TempDir(), "siw.pcap")
		flags = append(flags, "--pcap", pcap)
	}
	return flags, pcap
}

// rpingToUs: the guest is the client.
func rpingToUs(t *testing.T, g *siw.Guest, crc bool, size int) {
	guestCRC(t, g, crc)
	flags, pcap := ourFlags(t, crc, size)
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	server := start(t, g.Command(ctx, append([]string{softrnicBinary(t), "serve", "ping"}, flags...)...))
	server.waitFor(t, "listening", 20*time.Second)
	begin := time.Now()
	out, err := g.Exec(2*time.Minute, fmt.Sprintf("rping -c -a %s -S %d -C %d -V", siw.OurAddr, size, siwRounds))
	if err != nil {
		t.Fatalf("%v\nour side:\n%s", err, server.output())
	}
	if strings.Contains(out, "mismatch") || strings.Contains(out, "error") {
		t.Errorf("rping says:\n%s", out)
	}
	t.Logf("%d rounds of %d octets in %v", siwRounds, size, time.Since(begin).Round(time.Millisecond))
	server.interrupt(t)
	checkCapture(t, pcap, crc, siw.OurAddr, true)
}

// usToRping: the guest is the server.
func usToRping(t *testing.T, g *siw.Guest, crc bool, size int) {
	guestCRC(t, g, crc)
	flags, pcap := ourFlags(t, crc, size)
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	type result struct {
		out string
		err error
	}
	served := make(chan result, 1)
	go func() {
		out, err := g.Exec(2*time.Minute, fmt.Sprintf("rping -s -a %s -S %d -C %d -V", siw.GuestAddr, size, siwRounds))
		served <- result{out, err}
	}()
	waitListening(t, g)
	args := append([]string{softrnicBinary(t), "ping", siw.GuestAddr, "--size", strconv.Itoa(size),
		"--count", strconv.Itoa(siwRounds), "--validate"}, flags...)
	begin := time.Now()
	client := start(t, g.Command(ctx, args...))
	if err := client.wait(); err != nil {
		t.Fatalf("%v\n%s", err, client.output())
	}
	t.Logf("%d rounds of %d octets in %v", siwRounds, size, time.Since(begin).Round(time.Millisecond))
	r := <-served
	// rping's server ends with an error where the client has gone first; what counts
	// is that it found nothing wrong with the data.
	if strings.Contains(r.out, "mismatch") {
		t.Errorf("rping says:\n%s", r.out)
	}
	checkCapture(t, pcap, crc, siw.OurAddr, false)
}

// waitListening waits until something listens in the guest at rping's port.
func waitListening(t *testing.T, g *siw.Guest) {
	t.Helper()
	var out string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if out, _ = g.Exec(10*time.Second, "grep -q ' 00000000:1C06 \\| 02004D0A:1C06 ' /proc/net/tcp && echo yes"); strings.Contains(out, "yes") {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("rping's server does not listen at port 7174: %s", out)
}

// checkCapture looks into the capture of an exchange by decode: CRC was what the
// test wanted, and Writes and Reads were really made.
func checkCapture(t *testing.T, pcap string, crc bool, us string, weServe bool) {
	t.Helper()
	if pcap == "" {
		return
	}
	out, err := exec.Command(softrnicBinary(t), "decode", "-o", "json", pcap).Output()
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	kinds, crcs := map[string]int{}, map[string]int{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		var m struct{ Src, Kind, Opcode, CRC string }
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			t.Fatalf("%v: %s", err, s.Text())
		}
		kinds[m.Kind]++
		if m.Kind == "fpdu" {
			kinds[m.Opcode]++
			crcs[m.CRC]++
		}
	}
	want := "off"
	if crc {
		want = "ok"
	}
	if len(crcs) != 1 || crcs[want] == 0 {
		t.Errorf("CRC of the FPDUs: %v, want all %q", crcs, want)
	}
	if kinds["mpa-request"] != 1 || kinds["mpa-reply"] != 1 {
		t.Errorf("frames %v, want one MPA Request and one Reply", kinds)
	}
	// A round of rping: the server reads the client's buffer and writes it back.
	if kinds["read-request"] != siwRounds || kinds["write"] < siwRounds || kinds["terminate"] > 0 {
		t.Errorf("frames %v, want %d Read Requests, at least as many Writes, no Terminate", kinds, siwRounds)
	}
}

// process is a program that a test started, with what it has said.
type process struct {
	cmd  *exec.Cmd
	mu   sync.Mutex
	buf  bytes.Buffer
	done chan struct{}
	err  error
}

// start starts cmd and collects its output. It is ended with t.
func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		select {
		case <-p.done:
		default:
			cmd.Process.Kill()
			<-p.done
		}
	})
	return p
}

// Write implements io.Writer for the program's output.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.Write(b)
}

var _ io.Writer = (*process)(nil)

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.String()
}

// waitFor waits until the program has said word.
func (p *process) waitFor(t *testing.T, word string, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if strings.Contains(p.output(), word) {
			return
		}
		select {
		case <-p.done:
			t.Fatalf("%v ended (%v) before it said %q:\n%s", p.cmd.Args, p.err, word, p.output())
		default:
		}
	}
	t.Fatalf("%v did not say %q in %v:\n%s", p.cmd.Args, word, d, p.output())
}

// wait waits for the program's end.
func (p *process) wait() error {
	<-p.done
	return p.err
}

// interrupt ends the program as ^C does, and wants a clean end.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("%v: %v\n%s", p.cmd.Args, err, p.output())
		return
	}
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		t.Errorf("%v runs 10 s after ^C:\n%s", p.cmd.Args, p.output())
	}
}

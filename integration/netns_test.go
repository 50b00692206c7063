package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic"
	"github.com/softrnic/softrnic/integration/internal/netns"
	"github.com/softrnic/softrnic/verbs"
)

// newLab makes a namespace with a bridge, or ends t saying what is missing.
func newLab(t *testing.T) *netns.Lab {
	t.Helper()
	l, err := netns.New()
	if err != nil {
		missing(t, "%v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestNetnsTransfer moves 1 GiB each way, both at once, between two RNICs in two
// processes over TAPs on a bridge, by Write and by Read in turns, and compares
// SHA-256 of every 64 MiB.
func TestNetnsTransfer(t *testing.T) {
	total := 1 << 30
	if testing.Short() {
		total = 256 << 20
	}
	for _, c := range []struct {
		name, a, b string
		mtu        int
		premade    bool
	}{
		{"v4", "10.2.0.1/24", "10.2.0.2/24", 1500, true},
		{"v6", "fd02::1/64", "fd02::2/64", 9000, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := seed(t)
			lab := newLab(t)
			ends := [2]string{c.a, c.b}
			var peers [2]*process
			for i, addr := range ends {
				name := fmt.Sprintf("tap%d", i)
				if c.premade {
					if err := lab.TAP(name, c.mtu); err != nil {
						t.Fatal(err)
					}
				}
				cmd := exec.Command(os.Args[0], childArg, "transfer", "-tap", name, "-addr", addr, "-mtu", fmt.Sprint(c.mtu),
					"-peer", netip.MustParsePrefix(ends[1-i]).Addr().String(), "-total", fmt.Sprint(total),
					"-seed", fmt.Sprint(s+uint64(i)), fmt.Sprintf("-connect=%v", i == 1))
				cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
				peers[i] = startIn(t, lab, cmd)
				if !c.premade {
					peers[i].waitFor(t, "opened", 10*time.Second)
					if err := lab.Attach(name, c.mtu); err != nil {
						t.Fatal(err)
					}
				}
				if i == 0 {
					peers[i].waitFor(t, "listening", 10*time.Second)
				}
			}
			begin := time.Now()
			for i, p := range peers {
				if err := p.wait(); err != nil {
					t.Errorf("%s: %v\n%s", ends[i], err, p.output())
				} else if want := fmt.Sprintf("verified %d octets", total); !strings.Contains(p.output(), want) {
					t.Errorf("%s did not say %q:\n%s", ends[i], want, p.output())
				} else {
					t.Logf("%s: %s", ends[i], p.output()[strings.Index(p.output(), "verified"):])
				}
			}
			t.Logf("%d MiB each way at once, generated, moved and hashed, in %v", total>>20, time.Since(begin).Round(time.Millisecond))
		})
	}
}

// startIn starts cmd in the namespace of lab, as start does here.
func startIn(t *testing.T, lab *netns.Lab, cmd *exec.Cmd) *process {
	t.Helper()
	var p *process
	if err := lab.Do(func() error { p = start(t, cmd); return nil }); err != nil {
		t.Fatal(err)
	}
	return p
}

func init() { children["transfer"] = transfer }

const (
	transferPort = 4791
	passLen      = 64 << 20 // octets hashed at once
	chunk        = 1 << 20  // octets of one WR
	noteLen      = 1 + 4 + sha256.Size
)

// A note is a short Send that goes with the data.
const (
	noteWritten = 'w' // I have written a pass into your memory; this is its hash
	noteRead    = 'r' // a pass waits in my memory, read it; this is its hash
	noteOK      = 'k' // your pass has the hash that you said
)

// transfer is one side of TestNetnsTransfer.
func transfer(args []string) error {
	f := flag.NewFlagSet("transfer", flag.ContinueOnError)
	tapName, addr, peer := f.String("tap", "", ""), f.String("addr", "", ""), f.String("peer", "", "")
	total, mtu, seed := f.Int("total", 0, ""), f.Int("mtu", 0, ""), f.Uint64("seed", 0, "")
	active := f.Bool("connect", false, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Minute)
	defer stop()
	rnic, err := softrnic.Open(ctx, softrnic.Config{TAP: *tapName, Addrs: []netip.Prefix{netip.MustParsePrefix(*addr)}, MTU: *mtu})
	if err != nil {
		return err
	}
	defer rnic.Close()
	fmt.Println("opened")
	p := &transferPeer{seed: *seed, passes: *total / passLen}
	if err := p.open(rnic); err != nil {
		return err
	}
	private := binary.BigEndian.AppendUint32(nil, uint32(p.in.STag()))
	private = binary.BigEndian.AppendUint64(private, p.in.Base())
	private = binary.BigEndian.AppendUint32(private, uint32(p.out.STag()))
	private = binary.BigEndian.AppendUint64(private, p.out.Base())
	params := verbs.ConnParams{PrivateData: private, IRD: 16, ORD: 16}
	var theirs []byte
	if *active {
		info, err := p.qp.Connect(ctx, netip.AddrPortFrom(netip.MustParseAddr(*peer), transferPort), params)
		if err != nil {
			return err
		}
		theirs = info.PrivateData
	} else {
		l, err := rnic.Listen(netip.AddrPortFrom(netip.MustParsePrefix(*addr).Addr(), transferPort), verbs.ListenConfig{})
		if err != nil {
			return err
		}
		defer l.Close()
		fmt.Println("listening")
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		theirs = req.PrivateData()
		if _, err := req.Accept(p.qp, params); err != nil {
			return err
		}
	}
	if len(theirs) < 24 {
		return fmt.Errorf("private data of %d octets", len(theirs))
	}
	p.theirIn, p.theirInTO = verbs.STag(binary.BigEndian.Uint32(theirs)), binary.BigEndian.Uint64(theirs[4:])
	p.theirOut, p.theirOutTO = verbs.STag(binary.BigEndian.Uint32(theirs[12:])), binary.BigEndian.Uint64(theirs[16:])
	if err := p.run(ctx, *active); err != nil {
		return err
	}
	st := rnic.Stack().Stats()
	fmt.Printf("verified %d octets; TCP: %d retransmits, %d timeouts\n", p.verified, st.TCPRetransmits, st.TCPTimeouts)
	return nil
}

// transferPeer has what one side sends and receives.
type transferPeer struct {
	seed       uint64
	passes     int
	pd         *verbs.PD
	cq         *verbs.CQ
	qp         *verbs.QP
	in, out    *verbs.MR // passLen octets each
	notes      *verbs.MR // notes received, then notes sent
	sent       int       // notes
	theirIn    verbs.STag
	theirInTO  uint64
	theirOut   verbs.STag
	theirOutTO uint64

	pass     int // of ours, at hand
	checked  int // of theirs
	verified int // octets
	hash     [sha256.Size]byte
	reads    int // outstanding
	expect   []byte
}

const (
	noteSlots = 8
	idRead    = 1 << 32
)

func (p *transferPeer) open(rnic *softrnic.RNIC) (err error) {
	if p.pd, err = rnic.AllocPD(); err != nil {
		return err
	}
	if p.cq, err = rnic.CreateCQ(4096); err != nil {
		return err
	}
	p.qp, err = p.pd.CreateQP(verbs.QPConfig{SendCQ: p.cq, RecvCQ: p.cq, Cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 64}})
	if err != nil {
		return err
	}
	for _, r := range []struct {
		mr     **verbs.MR
		n      int
		access verbs.Access
	}{
		{&p.in, passLen, verbs.LocalWrite | verbs.RemoteWrite},
		{&p.out, passLen, verbs.RemoteRead},
		{&p.notes, 2 * noteSlots * noteLen, verbs.LocalWrite},
	} {
		if *r.mr, err = p.pd.RegMR(make([]byte, r.n), r.access); err != nil {
			return err
		}
	}
	for i := range noteSlots {
		if err := p.postNote(i); err != nil {
			return err
		}
	}
	return nil
}

func (p *transferPeer) postNote(slot int) error {
	_, err := p.qp.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{p.notes.SGE(slot*noteLen, noteLen)}})
	return err
}

// note sends a note of pass n.
func (p *transferPeer) note(kind byte, n int, hash []byte) error {
	off := (noteSlots + p.sent%noteSlots) * noteLen
	p.sent++
	b := p.notes.Bytes()[off : off+noteLen]
	b[0] = kind
	binary.BigEndian.PutUint32(b[1:], uint32(n))
	copy(b[5:], hash)
	_, err := p.qp.PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{p.notes.SGE(off, noteLen)}})
	return err
}

// next begins our next pass: even ones are written, odd ones read by the peer.
func (p *transferPeer) next() error {
	fill(p.out.Bytes(), p.seed*1000+uint64(p.pass))
	p.hash = sha256.Sum256(p.out.Bytes())
	kind := byte(noteRead)
	if p.pass%2 == 0 {
		kind = noteWritten
		for off := 0; off < passLen; off += chunk {
			_, err := p.qp.PostSend(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{p.out.SGE(off, chunk)},
				RemoteSTag: p.theirIn, RemoteTO: p.theirInTO + uint64(off)})
			if err != nil {
				return err
			}
		}
	}
	return p.note(kind, p.pass, p.hash[:])
}

// check compares the pass that came in and tells the peer.
func (p *transferPeer) check() error {
	if got := sha256.Sum256(p.in.Bytes()); !bytes.Equal(got[:], p.expect) {
		return fmt.Errorf("pass %d has SHA-256 %x, the peer sent %x", p.checked, got, p.expect)
	}
	p.verified += passLen
	err := p.note(noteOK, p.checked, nil)
	p.checked++
	return err
}

// run moves all passes, both ways at once. The side that connected speaks first
// (RFC 5044 section 7.1.2, rule 4).
func (p *transferPeer) run(ctx context.Context, active bool) error {
	begun := active
	if active {
		if err := p.next(); err != nil {
			return err
		}
	}
	wcs := make([]verbs.WC, 16)
	for p.pass < p.passes || p.checked < p.passes {
		n, err := p.cq.Wait(ctx, wcs)
		if err != nil {
			return fmt.Errorf("pass %d, %d checked: %w", p.pass, p.checked, err)
		}
		for _, wc := range wcs[:n] {
			switch {
			case wc.Status != verbs.Success:
				return fmt.Errorf("pass %d, %d checked: WR %d: %v: %w", p.pass, p.checked, wc.ID, wc.Status, wc.Err)
			case wc.ID&idRead != 0:
				if p.reads--; p.reads == 0 {
					err = p.check()
				}
			case wc.Op == verbs.OpRecv:
				err = p.noted(int(wc.ID), int(wc.ByteLen))
				if err == nil && !begun {
					begun, err = true, p.next()
				}
			}
			if err != nil {
				return err
			}
			if p.pass == p.passes && p.checked == p.passes {
				break // what follows may be the end of the connection
			}
		}
	}
	// The last note must get out before we go.
	return p.qp.Disconnect(ctx)
}

// noted takes a note.
func (p *transferPeer) noted(slot, n int) error {
	if n != noteLen {
		return fmt.Errorf("a note of %d octets", n)
	}
	b := bytes.Clone(p.notes.Bytes()[slot*noteLen:][:noteLen])
	if err := p.postNote(slot); err != nil {
		return err
	}
	number := int(binary.BigEndian.Uint32(b[1:]))
	switch b[0] {
	case noteOK:
		if number != p.pass {
			return fmt.Errorf("the peer confirms pass %d, at hand is %d", number, p.pass)
		}
		if p.pass++; p.pass < p.passes {
			return p.next()
		}
		return nil
	case noteWritten:
		p.expect = b[5:]
		return p.check()
	case noteRead:
		p.expect = b[5:]
		for off := 0; off < passLen; off += chunk {
			_, err := p.qp.PostSend(verbs.SendWR{ID: idRead, Flags: verbs.Signaled, Op: verbs.OpRead, SGL: []verbs.SGE{p.in.SGE(off, chunk)},
				RemoteSTag: p.theirOut, RemoteTO: p.theirOutTO + uint64(off)})
			if err != nil {
				return err
			}
			p.reads++
		}
		return nil
	}
	return fmt.Errorf("a note of kind %q", b[0])
}

// TestNetnsDemo runs the demo as root does, and wants what it promises.
func TestNetnsDemo(t *testing.T) {
	newLab(t) // for its checks
	cmd := exec.Command(softrnicBinary(t), "demo", "-o", "json")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	begin := time.Now()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, stderr.String())
	}
	var d struct {
		Verified bool
		Path     string
		Ops      []struct {
			Op    string
			Bytes int64
			Gbps  float64
		}
	}
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !d.Verified || d.Path != "tap" {
		t.Errorf("verified %v, path %q; want true, tap", d.Verified, d.Path)
	}
	seen := map[string]int64{}
	for _, op := range d.Ops {
		seen[op.Op] += op.Bytes
		if op.Gbps <= 0 {
			t.Errorf("%s: %v Gb/s", op.Op, op.Gbps)
		}
	}
	for _, op := range []string{"write", "read", "send"} {
		if seen[op] < 256<<20 {
			t.Errorf("%s moved %d octets, want at least 256 MiB", op, seen[op])
		}
	}
	took := time.Since(begin).Round(time.Millisecond)
	t.Logf("took %v: %s", took, out)
	if left := running(softrnicBinary(t)); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// TestNetnsDemoInterrupted: ^C ends the demo at any moment, and nothing of it is left:
// no process, and so no namespace, interface or address, as those of the demo have
// no names.
func TestNetnsDemoInterrupted(t *testing.T) {
	newLab(t) // for its checks
	before := interfaces(t)
	for _, after := range []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, 1500 * time.Millisecond} {
		cmd := exec.Command(softrnicBinary(t), "demo")
		p := start(t, cmd)
		time.Sleep(after)
		p.interrupt(t)
		if p.cmd.ProcessState != nil && p.cmd.ProcessState.Success() && !strings.Contains(p.output(), "verified") {
			t.Errorf("interrupted after %v it says success:\n%s", after, p.output())
		}
		var left []string
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if left = running(softrnicBinary(t)); len(left) == 0 {
				break
			}
		}
		if len(left) > 0 {
			t.Errorf("interrupted after %v, processes %v are left", after, left)
		}
	}
	if now := interfaces(t); !slices.Equal(now, before) {
		t.Errorf("interfaces before: %v, after: %v", before, now)
	}
}

// running returns the processes that run the program at path.
func running(path string) (pids []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, l := range links {
		if exe, err := os.Readlink(l); err == nil && exe == path {
			pids = append(pids, filepath.Base(filepath.Dir(l)))
		}
	}
	return pids
}

// interfaces returns the names of the interfaces of this namespace.
func interfaces(t *testing.T) (names []string) {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

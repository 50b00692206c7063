package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic"
	"github.com/softrnic/softrnic/verbs"
)

const (
	demoPort  = 4791
	demoChunk = 1 << 20 // octets of a message
	demoDepth = 16      // messages in flight
	demoSmall = 64      // octets, for latencies
	demoLoops = 2000
)

// peerState is one RNIC of the demo.
type peerState struct {
	cfg    softrnic.Config
	client bool
	o      demoOptions
	out    *json.Encoder

	rnic   *softrnic.RNIC
	pd     *verbs.PD
	sq, rq *verbs.CQ
	qp     *verbs.QP
	l      *verbs.Listener
	mr     *verbs.MR // what is moved
	small  *verbs.MR // for latencies: one half to send, one half to be written
	far    struct{ mr, small verbs.STag }
	bg     chan error // the end of what goes on while the other side works
	crc    bool
}

// demoPeer opens an RNIC and obeys commands until in ends. Then it also gives up
// what it is at: nobody waits for it.
func demoPeer(ctx context.Context, cfg softrnic.Config, client bool, o demoOptions, in io.Reader, out io.Writer) (err error) {
	p := &peerState{cfg: cfg, client: client, o: o, out: json.NewEncoder(out), bg: make(chan error, 1)}
	defer func() {
		if p.rnic != nil {
			err = errors.Join(err, p.rnic.Close())
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	commands := make(chan demoCommand)
	go func() {
		defer cancel()
		for dec := json.NewDecoder(in); ; {
			var c demoCommand
			if dec.Decode(&c) != nil {
				return
			}
			select {
			case commands <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		var c demoCommand
		select {
		case c = <-commands:
		case <-ctx.Done():
			return nil
		}
		reply, err := p.do(ctx, c.Do)
		if err != nil {
			reply = demoReply{Err: oneLine(err)}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := p.out.Encode(reply); err != nil {
			return nil // the conductor is gone, and so are we
		}
	}
}

func (p *peerState) do(ctx context.Context, what string) (r demoReply, err error) {
	switch what {
	case "open":
		err = p.open(ctx)
		r.CRC = p.crc
	case "accepted", "recv-wait":
		select {
		case err = <-p.bg:
		case <-ctx.Done():
			err = ctx.Err()
		}
	case "fill":
		var seed [32]byte
		rand.Read(seed[:])
		r.SHA256, err = p.sum(ctx, mrand.NewChaCha8(seed))
	case "wipe":
		clear(p.mr.Bytes())
	case "hash":
		r.SHA256, err = p.sum(ctx, nil)
	case "write", "read", "send":
		r.Gbps, err = p.bulk(ctx, map[string]verbs.Op{"write": verbs.OpWrite, "read": verbs.OpRead, "send": verbs.OpSend}[what])
	case "recv":
		err = p.recv(ctx)
	case "echo":
		err = p.postSmall(2)
		go func() { p.bg <- p.echo(ctx) }()
	case "lat-write", "lat-read", "lat-send":
		err = p.latency(ctx, what, &r)
	case "close":
		select { // an echo that has ended
		case err = <-p.bg:
		default:
		}
		if p.client {
			dctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			err = errors.Join(err, p.qp.Disconnect(dctx))
		}
	default:
		err = fmt.Errorf("unknown command %q", what)
	}
	return r, err
}

// sum returns the SHA-256 of the memory, filled from r first where r is not nil.
func (p *peerState) sum(ctx context.Context, r io.Reader) (string, error) {
	h := sha256.New()
	for b := p.mr.Bytes(); len(b) > 0; {
		piece := b[:min(len(b), demoChunk)]
		b = b[len(piece):]
		if r != nil {
			if _, err := io.ReadFull(r, piece); err != nil {
				return "", err
			}
		}
		h.Write(piece)
		if err := ctx.Err(); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// open makes the RNIC and connects it, or lets the other one connect.
func (p *peerState) open(ctx context.Context) (err error) {
	if p.rnic, err = softrnic.Open(ctx, p.cfg); err != nil {
		return err
	}
	d := p.rnic.Device
	if p.pd, err = d.AllocPD(); err != nil {
		return err
	}
	if p.mr, err = p.pd.RegMR(make([]byte, p.o.mib<<20), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite); err != nil {
		return err
	}
	if p.small, err = p.pd.RegMR(make([]byte, 2*demoSmall), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite); err != nil {
		return err
	}
	if p.sq, err = d.CreateCQ(256); err != nil {
		return err
	}
	n := p.o.mib + 8
	if p.rq, err = d.CreateCQ(n); err != nil {
		return err
	}
	if p.qp, err = p.pd.CreateQP(verbs.QPConfig{SendCQ: p.sq, RecvCQ: p.rq, SignalAll: true, Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: n}}); err != nil {
		return err
	}
	mine := binary.BigEndian.AppendUint32(nil, uint32(p.mr.STag()))
	mine = binary.BigEndian.AppendUint32(mine, uint32(p.small.STag()))
	params := verbs.ConnParams{PrivateData: mine, NoCRC: p.o.noCRC}
	cctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	if p.client {
		defer cancel()
		info, err := p.qp.Connect(cctx, netip.AddrPortFrom(demoAddrs[1].Addr(), demoPort), params)
		if err != nil {
			return err
		}
		return p.connected(info)
	}
	if p.l, err = d.Listen(netip.AddrPortFrom(demoAddrs[1].Addr(), demoPort), verbs.ListenConfig{}); err != nil {
		cancel()
		return err
	}
	go func() {
		defer cancel()
		req, err := p.l.Accept(cctx)
		if err == nil {
			var info verbs.ConnInfo
			if info, err = req.Accept(p.qp, params); err == nil {
				info.PrivateData = req.PrivateData()
				err = p.connected(info)
			}
		}
		p.bg <- err
	}()
	return nil
}

func (p *peerState) connected(info verbs.ConnInfo) error {
	if len(info.PrivateData) != 8 {
		return fmt.Errorf("%d octets of private data, 8 are due", len(info.PrivateData))
	}
	p.far.mr = verbs.STag(binary.BigEndian.Uint32(info.PrivateData))
	p.far.small = verbs.STag(binary.BigEndian.Uint32(info.PrivateData[4:]))
	p.crc = info.CRC
	return nil
}

// completions waits for n.
func completions(ctx context.Context, cq *verbs.CQ, n int) error {
	var wcs [16]verbs.WC
	for n > 0 {
		got, err := cq.Wait(ctx, wcs[:min(n, len(wcs))])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:got] {
			if wc.Status != verbs.Success {
				return fmt.Errorf("%v: %v: %w", wc.Op, wc.Status, wc.Err)
			}
		}
		n -= got
	}
	return nil
}

// bulk moves all of the memory and returns the goodput in Gb/s.
func (p *peerState) bulk(ctx context.Context, op verbs.Op) (gbps float64, err error) {
	if op == verbs.OpSend {
		if err := p.postSmall(1); err != nil {
			return 0, err
		}
	}
	total := p.mr.Len()
	begin := time.Now()
	shown := begin
	inFlight := 0
	for off := 0; off < total; off += demoChunk {
		if inFlight == demoDepth {
			if err := completions(ctx, p.sq, 1); err != nil {
				return 0, err
			}
			inFlight--
			if now := time.Now(); now.Sub(shown) > 100*time.Millisecond {
				shown = now
				if err := p.out.Encode(demoReply{Done: int64(off - inFlight*demoChunk)}); err != nil {
					return 0, err
				}
			}
		}
		wr := verbs.SendWR{Op: op, SGL: []verbs.SGE{p.mr.SGE(off, min(demoChunk, total-off))}, RemoteSTag: p.far.mr, RemoteTO: uint64(off)}
		if _, err := p.qp.PostSend(wr); err != nil {
			return 0, err
		}
		inFlight++
	}
	if op == verbs.OpWrite {
		// A Write is complete when TCP has it; a Read behind it comes back when the
		// peer has placed it.
		if _, err := p.qp.PostSend(verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{p.small.SGE(0, 1)}, RemoteSTag: p.far.small}); err != nil {
			return 0, err
		}
		inFlight++
	}
	if err := completions(ctx, p.sq, inFlight); err != nil {
		return 0, err
	}
	if op == verbs.OpSend { // the peer says that all have come
		if err := completions(ctx, p.rq, 1); err != nil {
			return 0, err
		}
	}
	return float64(total) * 8 / float64(time.Since(begin)), nil
}

// recv posts receives for all of the memory, and in the background waits for them
// and tells the peer.
func (p *peerState) recv(ctx context.Context) error {
	n := 0
	for off := 0; off < p.mr.Len(); off += demoChunk {
		if _, err := p.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{p.mr.SGE(off, min(demoChunk, p.mr.Len()-off))}}); err != nil {
			return err
		}
		n++
	}
	go func() {
		err := completions(ctx, p.rq, n)
		if err == nil {
			err = p.sendSmall(ctx)
		}
		p.bg <- err
	}()
	return nil
}

func (p *peerState) postSmall(n int) error {
	for range n {
		if _, err := p.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{p.small.SGE(demoSmall, demoSmall)}}); err != nil {
			return err
		}
	}
	return nil
}

func (p *peerState) sendSmall(ctx context.Context) error {
	if _, err := p.qp.PostSend(verbs.SendWR{SGL: []verbs.SGE{p.small.SGE(0, demoSmall)}}); err != nil {
		return err
	}
	return completions(ctx, p.sq, 1)
}

// echo answers as many Sends as the peer's latency makes.
func (p *peerState) echo(ctx context.Context) error {
	for n := range demoLoops {
		err := completions(ctx, p.rq, 1)
		if err == nil && n < demoLoops-2 {
			err = p.postSmall(1)
		}
		if err == nil {
			err = p.sendSmall(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// latency times small operations: a Read's round trip; that of a Write with the
// Read that confirms it; half of a round trip by Sends.
func (p *peerState) latency(ctx context.Context, what string, r *demoReply) error {
	h := newHistogram()
	sgl := []verbs.SGE{p.small.SGE(0, demoSmall)}
	write := verbs.SendWR{Op: verbs.OpWrite, SGL: sgl, RemoteSTag: p.far.small}
	read := verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{p.small.SGE(demoSmall, demoSmall)}, RemoteSTag: p.far.small}
	share := time.Duration(1)
	for range demoLoops {
		var err error
		begin := time.Now()
		switch what {
		case "lat-read":
			if _, err = p.qp.PostSend(read); err == nil {
				err = completions(ctx, p.sq, 1)
			}
		case "lat-write":
			if _, err = p.qp.PostSend(write, read); err == nil {
				err = completions(ctx, p.sq, 2)
			}
		case "lat-send":
			share = 2
			if err = p.postSmall(1); err == nil {
				err = p.sendSmall(ctx)
			}
			if err == nil {
				err = completions(ctx, p.rq, 1)
			}
		}
		if err != nil {
			return err
		}
		h.add(time.Since(begin) / share)
	}
	r.P50US, r.P99US = h.us(50), h.us(99)
	return nil
}

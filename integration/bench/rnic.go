package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/softrnic/softrnic"
	"github.com/softrnic/softrnic/netstack"
	"github.com/softrnic/softrnic/tap"
	"github.com/softrnic/softrnic/verbs"
)

// limit ends a process that waits in vain.
const limit = time.Minute

// netstackOn opens side's TAP with the stack alone on it.
func netstackOn(o options, side int) (*netstack.Stack, func(), error) {
	dev, err := tap.Open(tap.Config{Name: taps[side]})
	if err != nil {
		return nil, nil, err
	}
	s, err := netstack.New(dev, netstack.Config{Addrs: []netip.Prefix{rnicAddr[side]}, MTU: o.mtu})
	if err != nil {
		dev.Close()
		return nil, nil, err
	}
	return s, func() { s.Close(); dev.Close() }, nil
}

// netstackServer serves one connection over netstack's TCP.
func netstackServer(o options, ready func()) error {
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	s, done, err := netstackOn(o, 0)
	if err != nil {
		return err
	}
	defer done()
	l, err := s.Listen(netip.AddrPortFrom(rnicAddr[0].Addr(), port), 0)
	if err != nil {
		return err
	}
	defer l.Close()
	ready()
	c, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := serveStream(newLLPStream(c), o.size); err != nil {
		return err
	}
	time.Sleep(50 * time.Millisecond) // FIN out, before the stack goes
	return nil
}

// netstackClient measures over netstack's TCP.
func netstackClient(o options, c contestant) (result, error) {
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	s, done, err := netstackOn(o, 1)
	if err != nil {
		return result{}, err
	}
	defer done()
	conn, err := s.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(rnicAddr[0].Addr(), port))
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	if c.ping {
		return echoStream(newLLPStream(conn), o.duration)
	}
	return bulkStream(newLLPStream(conn), o.size, o.duration)
}

// rnic is one side of an RDMA measurement.
type rnic struct {
	*softrnic.RNIC
	cq *verbs.CQ
	qp *verbs.QP
	mr *verbs.MR
}

// outstanding is how many Writes are in flight.
const outstanding = 16

func openRNIC(ctx context.Context, o options, side int) (*rnic, error) {
	dev, err := softrnic.Open(ctx, softrnic.Config{TAP: taps[side], Addrs: []netip.Prefix{rnicAddr[side]}, MTU: o.mtu})
	if err != nil {
		return nil, err
	}
	r := &rnic{RNIC: dev}
	pd, err := dev.AllocPD()
	if err == nil {
		r.mr, err = pd.RegMR(filled(max(o.size, pingLen)), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
	}
	if err == nil {
		r.cq, err = dev.CreateCQ(2 * outstanding)
	}
	if err == nil {
		r.qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, RecvCQ: r.cq, Cap: verbs.QPCap{MaxSendWR: outstanding, MaxRecvWR: 1}})
	}
	if err != nil {
		dev.Close()
		return nil, err
	}
	return r, nil
}

// rdmaServer lends its memory to one peer, and sleeps.
func rdmaServer(o options, c contestant, ready func()) error {
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	r, err := openRNIC(ctx, o, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	l, err := r.Listen(netip.AddrPortFrom(rnicAddr[0].Addr(), port), verbs.ListenConfig{})
	if err != nil {
		return err
	}
	defer l.Close()
	ready()
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	private := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, uint32(r.mr.STag())), r.mr.Base())
	if _, err := req.Accept(r.qp, verbs.ConnParams{PrivateData: private, NoCRC: !c.crc, IRD: 16, ORD: 16}); err != nil {
		return err
	}
	if c.busy {
		for range 2 * runtime.GOMAXPROCS(0) {
			go func() {
				for x := uint64(1); ; x = x*6364136223846793005 + 1442695040888963407 {
					if x == 0 { // not before 2^64 steps
						return
					}
				}
			}()
		}
	}
	select {
	case <-r.qp.Done(): // the peer has left
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rdmaClient measures Writes, or the round trip of Reads.
func rdmaClient(o options, c contestant) (result, error) {
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	r, err := openRNIC(ctx, o, 1)
	if err != nil {
		return result{}, err
	}
	defer r.Close()
	info, err := r.qp.Connect(ctx, netip.AddrPortFrom(rnicAddr[0].Addr(), port), verbs.ConnParams{NoCRC: !c.crc, IRD: 16, ORD: 16})
	if err != nil {
		return result{}, err
	}
	if info.CRC != c.crc || len(info.PrivateData) < 12 {
		return result{}, fmt.Errorf("connected with CRC %v and %d octets of private data", info.CRC, len(info.PrivateData))
	}
	stag, to := verbs.STag(binary.BigEndian.Uint32(info.PrivateData)), binary.BigEndian.Uint64(info.PrivateData[4:])
	read := verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{r.mr.SGE(0, pingLen)}, RemoteSTag: stag, RemoteTO: to}
	write := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{r.mr.SGE(0, o.size)}, RemoteSTag: stag, RemoteTO: to}
	wcs := make([]verbs.WC, outstanding)
	// reap waits for at least one completion and returns how many there were.
	reap := func() (int, error) {
		n, err := r.cq.Wait(ctx, wcs)
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.Success {
				err = errors.Join(err, fmt.Errorf("%v: %w", wc.Status, wc.Err))
			}
		}
		return n, err
	}
	// one posts a WR and waits for it.
	one := func(wr verbs.SendWR) error {
		if _, err := r.qp.PostSend(wr); err != nil {
			return err
		}
		_, err := reap()
		return err
	}
	var res result
	if c.ping {
		res, err = pings(o.duration, func() error { return one(read) })
	} else {
		total, flying := uint64(0), 0
		send := func(d time.Duration) error {
			for end := time.Now().Add(d); time.Now().Before(end); {
				for ; flying < outstanding; flying++ {
					if _, err := r.qp.PostSend(write); err != nil {
						return err
					}
					total += uint64(o.size)
				}
				n, err := reap()
				if err != nil {
					return err
				}
				flying -= n
			}
			return nil
		}
		if err := send(warmUp); err != nil {
			return res, err
		}
		// A Read behind the Writes returns when all are placed: the clock stands between
		// two such moments.
		drain := func() error {
			for flying > 0 {
				n, err := reap()
				if err != nil {
					return err
				}
				flying -= n
			}
			return one(read)
		}
		if err := drain(); err != nil {
			return res, err
		}
		warm, m := total, startMeter()
		if err := send(o.duration); err != nil {
			return res, err
		}
		if err := drain(); err != nil {
			return res, err
		}
		res = m.bulk(total-warm, total)
	}
	if err != nil {
		return res, err
	}
	return res, r.qp.Disconnect(ctx)
}

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// The protocol of rdma-core's rping. In each round the client Sends the place of
// its data; the server Reads them and Sends "go ahead"; the client Sends the place
// of a second buffer; the server Writes the data there and Sends once more. All
// Sends have the same 16 octets: address, key and size, in network order.

const (
	rpingPort   = 7174
	rpingMin    = 23    // octets that rping's text needs
	rpingMax    = 65535 // octets of rping's buffers
	rpingInfo   = 16
	firstLetter = 'A'
	lastLetter  = 'z'
)

type rpingPlace struct {
	to   uint64
	stag verbs.STag
	size uint32
}

func (p rpingPlace) put(b []byte) {
	binary.BigEndian.PutUint64(b, p.to)
	binary.BigEndian.PutUint32(b[8:], uint32(p.stag))
	binary.BigEndian.PutUint32(b[12:], p.size)
}

func parsePlace(b []byte) rpingPlace {
	return rpingPlace{binary.BigEndian.Uint64(b), verbs.STag(binary.BigEndian.Uint32(b[8:])), binary.BigEndian.Uint32(b[12:])}
}

// pattern fills b as rping's client does in round n: a text, letters that move on
// by one each round, and a zero.
func pattern(b []byte, n int) {
	text := fmt.Sprintf("rdma-ping-%d: ", n)
	at := copy(b, text)
	c := byte(firstLetter + n%(lastLetter-firstLetter+1))
	for ; at < len(b)-1; at++ {
		b[at] = c
		if c++; c > lastLetter {
			c = firstLetter
		}
	}
	b[len(b)-1] = 0
}

// endpoint is one end of a ping, with its memory.
type endpoint struct {
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	info *verbs.MR // what we Send, then where the peer's Sends go
	data *verbs.MR // what is read; at the server, where it is read to
	back *verbs.MR // the client's: where the server writes
}

func newEndpoint(d *verbs.Device, size int, client bool) (e *endpoint, err error) {
	e = &endpoint{}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.pd, err = d.AllocPD(); err != nil {
		return e, err
	}
	if e.cq, err = d.CreateCQ(64); err != nil {
		return e, err
	}
	if e.info, err = e.pd.RegMR(make([]byte, 2*rpingInfo), verbs.LocalWrite); err != nil {
		return e, err
	}
	access := verbs.LocalWrite
	if client {
		access = verbs.RemoteRead
		if e.back, err = e.pd.RegMR(make([]byte, size), verbs.RemoteWrite); err != nil {
			return e, err
		}
	}
	if e.data, err = e.pd.RegMR(make([]byte, size), access); err != nil {
		return e, err
	}
	if e.qp, err = e.pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, SignalAll: true, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 2}}); err != nil {
		return e, err
	}
	return e, e.postRecv()
}

func (e *endpoint) close() error {
	var errs []error
	if e.qp != nil {
		errs = append(errs, e.qp.Close())
	}
	for _, m := range []*verbs.MR{e.info, e.data, e.back} {
		if m != nil {
			errs = append(errs, m.Dereg())
		}
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close())
	}
	return errors.Join(errs...)
}

func (e *endpoint) postRecv() error {
	_, err := e.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{e.info.SGE(rpingInfo, rpingInfo)}})
	return err
}

// wait returns when one completion of op has come; want counts those of others
// that are due on the way.
func (e *endpoint) wait(ctx context.Context, due ...verbs.Op) error {
	var wc [1]verbs.WC
	for len(due) > 0 {
		if _, err := e.cq.Wait(ctx, wc[:]); err != nil {
			return err
		}
		if wc[0].Status != verbs.Success {
			err := wc[0].Err
			if qerr := e.qp.Err(); qerr != nil {
				err = qerr
			}
			if e.ended(wc[0]) {
				return errPeerDone
			}
			return fmt.Errorf("%v: %v: %w", wc[0].Op, wc[0].Status, err)
		}
		at := -1
		for i, op := range due {
			if op == wc[0].Op {
				at = i
				break
			}
		}
		if at < 0 {
			return fmt.Errorf("unexpected completion of a %v", wc[0].Op)
		}
		if wc[0].Op == verbs.OpRecv && wc[0].ByteLen != rpingInfo {
			return fmt.Errorf("the peer sent %d octets, rping sends %d", wc[0].ByteLen, rpingInfo)
		}
		due = append(due[:at], due[at+1:]...)
	}
	return nil
}

// errPeerDone says that the peer closed the connection between two rounds.
var errPeerDone = errors.New("the peer closed the connection")

// ended says whether a flushed receive is only the peer's graceful end.
func (e *endpoint) ended(wc verbs.WC) bool {
	select {
	case <-e.qp.Done():
	case <-time.After(time.Second):
		return false
	}
	return wc.Op == verbs.OpRecv && wc.Status == verbs.WRFlush && e.qp.Err() == nil
}

func (e *endpoint) send(p rpingPlace) error {
	p.put(e.info.Bytes())
	_, err := e.qp.PostSend(verbs.SendWR{SGL: []verbs.SGE{e.info.SGE(0, rpingInfo)}})
	return err
}

// round runs one round of the client.
func (e *endpoint) round(ctx context.Context, n int, validate bool) error {
	size := e.data.Len()
	pattern(e.data.Bytes(), n)
	if validate {
		clear(e.back.Bytes())
	}
	for _, m := range []*verbs.MR{e.data, e.back} {
		if err := e.send(rpingPlace{m.Base(), m.STag(), uint32(size)}); err != nil {
			return err
		}
		if err := e.wait(ctx, verbs.OpSend, verbs.OpRecv); err != nil {
			return err
		}
		if err := e.postRecv(); err != nil {
			return err
		}
	}
	if validate && !bytes.Equal(e.data.Bytes(), e.back.Bytes()) {
		at := 0
		for e.data.Bytes()[at] == e.back.Bytes()[at] {
			at++
		}
		return fmt.Errorf("round %d: octet %d of %d came back as %#02x, sent was %#02x", n, at, size, e.back.Bytes()[at], e.data.Bytes()[at])
	}
	return nil
}

// serve runs the server's side until the peer is done.
func (e *endpoint) serve(ctx context.Context, got func(round int, data []byte)) (rounds int, err error) {
	for {
		from, err := e.place(ctx)
		if errors.Is(err, errPeerDone) {
			return rounds, nil
		} else if err != nil {
			return rounds, err
		}
		size := int(from.size)
		if size > e.data.Len() {
			return rounds, fmt.Errorf("the peer offers %d octets, at most %d are served", size, e.data.Len())
		}
		data := []verbs.SGE{e.data.SGE(0, size)}
		if _, err := e.qp.PostSend(verbs.SendWR{Op: verbs.OpRead, SGL: data, RemoteSTag: from.stag, RemoteTO: from.to}); err != nil {
			return rounds, err
		}
		if err := e.wait(ctx, verbs.OpRead); err != nil {
			return rounds, err
		}
		if got != nil {
			got(rounds, e.data.Bytes()[:size])
		}
		if err := e.send(rpingPlace{}); err != nil {
			return rounds, err
		}
		if err := e.wait(ctx, verbs.OpSend); err != nil {
			return rounds, err
		}
		to, err := e.place(ctx)
		if err != nil {
			return rounds, err
		}
		if _, err := e.qp.PostSend(verbs.SendWR{Op: verbs.OpWrite, SGL: data, RemoteSTag: to.stag, RemoteTO: to.to}); err != nil {
			return rounds, err
		}
		if err := e.send(rpingPlace{}); err != nil {
			return rounds, err
		}
		if err := e.wait(ctx, verbs.OpWrite, verbs.OpSend); err != nil {
			return rounds, err
		}
		rounds++
	}
}

// place waits for the peer's next Send.
func (e *endpoint) place(ctx context.Context) (rpingPlace, error) {
	if err := e.wait(ctx, verbs.OpRecv); err != nil {
		return rpingPlace{}, err
	}
	p := parsePlace(e.info.Bytes()[rpingInfo:])
	return p, e.postRecv()
}

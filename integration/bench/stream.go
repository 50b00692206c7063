package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
)

// stream is a TCP connection, of whichever stack.
type stream interface {
	io.Reader
	io.Writer
	CloseWrite() error
}

var _ stream = (*net.TCPConn)(nil)

// llpStream makes a blocking stream of a netstack connection: what a program has
// that uses netstack's TCP without iWARP. It copies once each way, as sockets do.
type llpStream struct {
	c    llp.Conn
	bell chan struct{}
	b    block
}

func newLLPStream(c llp.Conn) *llpStream {
	s := &llpStream{c: c, bell: make(chan struct{}, 1)}
	c.Notify(func(llp.Event) {
		select {
		case s.bell <- struct{}{}:
		default:
		}
	})
	return s
}

// block is an llp.Batch of octets that lie together.
type block struct{ p []byte }

func (b *block) Len() int { return len(b.p) }

func (b *block) Read(p []byte) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case len(p) < len(b.p):
		return 0, llp.ErrNoRoom
	}
	return copy(p, b.p), nil
}

func (s *llpStream) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		room := s.c.Room()
		k := min(len(p)-n, room.MaxBatch, max(room.Space, 1))
		if room.Space < min(len(p)-n, room.MaxBatch) {
			<-s.bell
			continue
		}
		s.b.p = p[n : n+k]
		switch err := s.c.Send(&s.b); {
		case errors.Is(err, llp.ErrWouldBlock):
			<-s.bell
		case err != nil:
			return n, err
		default:
			n += k
		}
	}
	return n, nil
}

func (s *llpStream) Read(p []byte) (int, error) {
	for {
		bufs, err := s.c.Receive(1, len(p))
		if errors.Is(err, llp.ErrWouldBlock) {
			<-s.bell
			continue
		}
		if err != nil {
			return 0, err
		}
		n := 0
		for _, b := range bufs {
			n += copy(p[n:], b)
		}
		return n, s.c.Consume(n)
	}
}

func (s *llpStream) CloseWrite() error { return s.c.CloseWrite() }

// What the first octet of a stream asks of the server.
const (
	askBulk = 'b' // takes octets until FIN, then answers with their number
	askEcho = 'e' // sends back each message of pingLen octets
)

// serveStream does what the client asks for.
func serveStream(s stream, size int) error {
	var ask [1]byte
	if _, err := io.ReadFull(s, ask[:]); err != nil {
		return err
	}
	switch ask[0] {
	case askBulk:
		buf, total := make([]byte, size), uint64(0)
		for {
			n, err := s.Read(buf)
			total += uint64(n)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
		}
		_, err := s.Write(binary.BigEndian.AppendUint64(nil, total))
		if err != nil {
			return err
		}
		return s.CloseWrite()
	case askEcho:
		var buf [pingLen]byte
		for {
			if _, err := io.ReadFull(s, buf[:]); errors.Is(err, io.EOF) {
				return s.CloseWrite()
			} else if err != nil {
				return err
			}
			if _, err := s.Write(buf[:]); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("asked for %q", ask[0])
}

// bulkStream sends blocks of size octets for d, and returns when the server has
// read them all.
func bulkStream(s stream, size int, d time.Duration) (result, error) {
	if _, err := s.Write([]byte{askBulk}); err != nil {
		return result{}, err
	}
	buf := filled(size)
	sent := uint64(0)
	send := func(d time.Duration) error {
		for end := time.Now().Add(d); time.Now().Before(end); {
			if _, err := s.Write(buf); err != nil {
				return err
			}
			sent += uint64(size)
		}
		return nil
	}
	if err := send(warmUp); err != nil {
		return result{}, err
	}
	warm, m := sent, startMeter()
	if err := send(d); err != nil {
		return result{}, err
	}
	if err := s.CloseWrite(); err != nil {
		return result{}, err
	}
	var answer [8]byte
	if _, err := io.ReadFull(s, answer[:]); err != nil {
		return result{}, err
	}
	r := m.bulk(sent-warm, sent)
	if got := binary.BigEndian.Uint64(answer[:]); got != sent {
		return r, fmt.Errorf("the server read %d of %d octets", got, sent)
	}
	return r, nil
}

// echoStream sends pings for d and waits for each to come back.
func echoStream(s stream, d time.Duration) (result, error) {
	if _, err := s.Write([]byte{askEcho}); err != nil {
		return result{}, err
	}
	var buf [pingLen]byte
	r, err := pings(d, func() error {
		if _, err := s.Write(buf[:]); err != nil {
			return err
		}
		_, err := io.ReadFull(s, buf[:])
		return err
	})
	if err != nil {
		return r, err
	}
	if err := s.CloseWrite(); err != nil {
		return r, err
	}
	if _, err := s.Read(buf[:]); !errors.Is(err, io.EOF) { // the server's FIN, before we go
		return r, fmt.Errorf("after the last echo: %v", err)
	}
	return r, nil
}

package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/verbs"
)

func describe(wc verbs.WC) string { return fmt.Sprintf("%d %v %v", wc.ID, wc.Op, wc.Status) }

// bubble runs a dialogue in a scene of its own.
func bubble(t *testing.T, name string, o llptest.Options, f func(s *scene)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(newScene(t, o, verbs.Config{})) })
	})
}

// The octets on the wire are those of the RFCs.
func TestDialogueWire(t *testing.T) {
	bubble(t, "accept", llptest.Options{}, func(s *scene) {
		m := s.MR(8, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
		s.Recv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{m.SGE(0, 4)}}, verbs.RecvWR{ID: 2})
		p := s.accept(verbs.ConnParams{})
		s.Send(verbs.SendWR{ID: 10, Data: []byte("a"), Flags: verbs.Inline | verbs.Signaled})
		p.wantIdle("a responder speaks second (RFC 5044 section 7.1.2, rule 4)")
		s.wantWCs("nothing was sent")
		p.write(fpdu(untagged(true, 3, 0, 0, 1, 0, "ping")))
		p.want("Send", fromHex("00134143 00000000 00000000 00000001 00000000 61000000 7a82544e"))
		s.wantWCs("Send", "1 Recv success", "10 Send success")
		if string(m.Bytes()) != "ping\x00\x00\x00\x00" {
			s.T.Errorf("%q", m.Bytes())
		}
		p.write(fpdu(untagged(true, 5, 0, 0, 2, 0, "")))
		s.wantWCs("Send with Solicited Event, of no octets", "2 Recv success")
		p.write(fpdu(tagged(true, 0, m.STag(), 4, "pong")), fpdu(readRequest(1, 0x11, 0x1000, 8, m.STag(), 0)))
		p.want("Read Response after the Write", fpdu(tagged(true, 2, 0x11, 0x1000, "pingpong")))
		// What has no octets names nothing, so its STag is not looked at (RFC 5041
		// section 5.2).
		p.write(fpdu(tagged(true, 0, 0xdeadbeef, 1<<63, "")), fpdu(readRequest(2, 0x11, 0x1000, 0, 0xdeadbeef, 5)))
		p.want("Read Response of no octets", fromHex("000ec142 00000011 00000000 00001000"+
			fmt.Sprintf("%x", fpdu(tagged(true, 2, 0x11, 0x1000, ""))[16:])))
		if s.QP.State() != verbs.RTS {
			s.T.Error(s.QP.Err())
		}
	})
	bubble(t, "connect", llptest.Options{}, func(s *scene) {
		p := s.connect()
		m := s.MR(8, verbs.LocalWrite)
		// A responder that speaks first is against the rule, and no harm.
		s.Recv(verbs.RecvWR{ID: 1})
		p.write(fpdu(untagged(true, 3, 0, 0, 1, 0, "")))
		s.wantWCs("the responder's first", "1 Recv success")
		copy(m.Bytes(), "abcd")
		s.Send(verbs.SendWR{ID: 2, Op: verbs.OpSendInv, SGL: []verbs.SGE{m.SGE(0, 1), m.SGE(1, 3)}, InvSTag: 0x01020304, Flags: verbs.Signaled},
			verbs.SendWR{ID: 3, Op: verbs.OpWrite, SGL: []verbs.SGE{m.SGE(0, 4)}, RemoteSTag: 0x11223344, RemoteTO: 1<<64 - 4, Flags: verbs.Signaled},
			verbs.SendWR{ID: 4, Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(4, 4)}, RemoteSTag: 0x22222222, RemoteTO: 0x2000, Flags: verbs.Signaled},
			verbs.SendWR{ID: 5, Flags: verbs.Signaled | verbs.Solicited},
			verbs.SendWR{ID: 6, Op: verbs.OpWrite, Flags: verbs.Signaled | verbs.Fence})
		p.want("Send with Invalidate", fromHex("00164144 01020304 00000000 00000001 00000000 61626364 800c679a"))
		p.want("Write", fromHex("0012c140 11223344 ffffffff fffffffc 61626364 15a05aa3"))
		p.want("Read Request", fpdu(readRequest(1, m.STag(), 4, 4, 0x22222222, 0x2000)))
		p.want("Send with Solicited Event", fpdu(untagged(true, 5, 0, 0, 2, 0, "")))
		p.wantIdle("the fenced Write waits for the Read")
		s.wantWCs("a Send behind a Read waits for it", "2 SendInv success", "3 Write success")
		p.write(fpdu(tagged(false, 2, m.STag(), 4, "ef")), fpdu(tagged(true, 2, m.STag(), 6, "gh")))
		s.wantWCs("the Read", "4 Read success", "5 Send success", "6 Write success")
		p.want("the fenced Write", fpdu(tagged(true, 0, 0, 0, "")))
		if string(m.Bytes()) != "abcdefgh" {
			s.T.Errorf("%q", m.Bytes())
		}
	})
}

// One octet per segment is as good as any other cut (RFC 5044 section 5.2).
func TestDialogueTrickle(t *testing.T) {
	bubble(t, "octets", llptest.Options{}, func(s *scene) {
		p := s.dial()
		for _, b := range request("hi") {
			p.write([]byte{b})
			synctest.Wait()
		}
		r, err := s.l.Accept(context.Background())
		if err != nil {
			s.T.Fatal(err)
		}
		m := s.MR(5, verbs.LocalWrite)
		s.Recv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{m.SGE(0, 5)}})
		if _, err := r.Accept(s.QP, verbs.ConnParams{}); err != nil {
			s.T.Fatal(err)
		}
		p.want("Reply", reply(""))
		f := fpdu(untagged(true, 3, 0, 0, 1, 0, "hello"))
		for i, b := range f {
			if i == len(f)-1 {
				s.wantWCs("an octet of the CRC is missing")
				if !bytes.Equal(m.Bytes(), make([]byte, 5)) {
					s.T.Error("placed before the CRC was verified")
				}
			}
			p.write([]byte{b})
			synctest.Wait()
		}
		s.wantWCs("whole", "1 Recv success")
		if string(m.Bytes()) != "hello" {
			s.T.Errorf("%q", m.Bytes())
		}
	})
}

// A peer's fault: the right Terminate, then FIN and never RST, every work request
// completed, nothing placed.
func TestDialogueFaults(t *testing.T) {
	type mrs struct{ rw, none, inv, other *verbs.MR }
	cases := []struct {
		name             string
		frame            func(m mrs) []byte
		layer, typ, code byte
		quoted           int    // octets of headers that the Terminate quotes
		recv             string // status of the first receive; "" for flushed
	}{
		{"CRC", func(m mrs) []byte {
			f := fpdu(tagged(true, 0, m.rw.STag(), 0, "data"))
			f[len(f)-1] ^= 1
			return f
		}, 2, 0, 2, 0, ""},
		{"payload flipped", func(m mrs) []byte {
			f := fpdu(tagged(true, 0, m.rw.STag(), 0, "data"))
			f[17] ^= 0x80
			return f
		}, 2, 0, 2, 0, ""},
		{"Write to no STag", func(m mrs) []byte { return fpdu(tagged(true, 0, m.rw.STag()^1, 0, "data")) }, 1, 1, 0, 14, ""},
		{"Write to STag 0", func(m mrs) []byte { return fpdu(tagged(true, 0, 0, 0, "data")) }, 1, 1, 0, 14, ""},
		{"Write beyond the end", func(m mrs) []byte { return fpdu(tagged(true, 0, m.rw.STag(), 13, "data")) }, 1, 1, 1, 14, ""},
		{"Write of another PD", func(m mrs) []byte { return fpdu(tagged(true, 0, m.other.STag(), 0, "data")) }, 1, 1, 2, 14, ""},
		{"Write that wraps", func(m mrs) []byte { return fpdu(tagged(true, 0, m.rw.STag(), 1<<64-3, "data")) }, 1, 1, 3, 14, ""},
		{"Write without the right", func(m mrs) []byte { return fpdu(tagged(true, 0, m.none.STag(), 0, "data")) }, 0, 1, 2, 14, ""},
		{"DDP version, tagged", func(m mrs) []byte {
			u := tagged(true, 0, m.rw.STag(), 0, "data")
			u[0]++
			return fpdu(u)
		}, 1, 1, 4, 14, ""},
		{"DDP version, untagged", func(m mrs) []byte {
			u := untagged(true, 3, 0, 0, 1, 0, "")
			u[0]++
			return fpdu(u)
		}, 1, 2, 6, 18, ""},
		{"RDMAP version", func(m mrs) []byte {
			u := untagged(true, 3, 0, 0, 1, 0, "")
			u[1] ^= 0xc0
			return fpdu(u)
		}, 0, 2, 5, 18, ""},
		{"opcode", func(m mrs) []byte { return fpdu(untagged(true, 15, 0, 0, 1, 0, "")) }, 0, 2, 6, 18, ""},
		{"Send in a tagged segment", func(m mrs) []byte { return fpdu(tagged(true, 3, m.rw.STag(), 0, "x")) }, 0, 2, 6, 14, ""},
		{"Read Response to nothing", func(m mrs) []byte { return fpdu(tagged(true, 2, m.rw.STag(), 0, "x")) }, 0, 2, 6, 14, ""},
		{"QN 3", func(m mrs) []byte { return fpdu(untagged(true, 3, 0, 3, 1, 0, "")) }, 1, 2, 1, 18, ""},
		{"QN 65536", func(m mrs) []byte { return fpdu(untagged(true, 3, 0, 1<<16, 1, 0, "")) }, 1, 2, 1, 18, ""},
		{"MSN", func(m mrs) []byte { return fpdu(untagged(true, 3, 0, 0, 2, 0, "")) }, 1, 2, 3, 18, ""},
		{"MO", func(m mrs) []byte { return fpdu(untagged(true, 3, 0, 0, 1, 4, "x")) }, 1, 2, 4, 18, ""},
		{"Send too long", func(m mrs) []byte { return fpdu(untagged(true, 3, 0, 0, 1, 0, "five!")) }, 1, 2, 5, 18, "local length error"},
		{"Send too long in its second segment", func(m mrs) []byte {
			return append(fpdu(untagged(false, 3, 0, 0, 1, 0, "")), fpdu(untagged(true, 3, 0, 0, 1, 0, "five!"))...)
		}, 1, 2, 5, 18, "local length error"},
		{"third Send", func(m mrs) []byte {
			return append(append(fpdu(untagged(true, 3, 0, 0, 1, 0, "")), fpdu(untagged(true, 3, 0, 0, 2, 0, ""))...), fpdu(untagged(true, 3, 0, 0, 3, 0, ""))...)
		}, 1, 2, 2, 18, "success"},
		{"Read of no STag", func(m mrs) []byte { return fpdu(readRequest(1, 1, 0, 4, m.rw.STag()^1, 0)) }, 0, 1, 0, 46, ""},
		{"Read beyond the end", func(m mrs) []byte { return fpdu(readRequest(1, 1, 0, 17, m.rw.STag(), 0)) }, 0, 1, 1, 46, ""},
		{"Read without the right", func(m mrs) []byte { return fpdu(readRequest(1, 1, 0, 4, m.none.STag(), 0)) }, 0, 1, 2, 46, ""},
		{"Read of another PD", func(m mrs) []byte { return fpdu(readRequest(1, 1, 0, 4, m.other.STag(), 0)) }, 0, 1, 3, 46, ""},
		{"Read that wraps", func(m mrs) []byte { return fpdu(readRequest(1, 1, 0, 4, m.rw.STag(), 1<<64-3)) }, 0, 1, 4, 46, ""},
		{"Read Request too long", func(m mrs) []byte { return fpdu(append(readRequest(1, 1, 0, 4, m.rw.STag(), 0), 0)) }, 1, 2, 5, 18, ""},
		{"Read Request too short", func(m mrs) []byte { return fpdu(readRequest(1, 1, 0, 4, m.rw.STag(), 0)[:45]) }, 0, 2, 0xff, 18, ""},
		{"invalidation of nothing", func(m mrs) []byte { return fpdu(untagged(true, 4, m.rw.STag()^1, 0, 1, 0, "")) }, 0, 1, 9, 18, ""},
		{"invalidation without the right", func(m mrs) []byte { return fpdu(untagged(true, 4, m.rw.STag(), 0, 1, 0, "")) }, 0, 1, 9, 18, ""},
		{"second use of an invalidated STag", func(m mrs) []byte {
			return append(fpdu(untagged(true, 4, m.inv.STag(), 0, 1, 0, "")), fpdu(tagged(true, 0, m.inv.STag(), 0, "data"))...)
		}, 1, 1, 0, 14, "success"},
		{"no header", func(m mrs) []byte { return fpdu(nil) }, 1, 0, 0, 0, ""},
		{"half a header", func(m mrs) []byte { return fpdu(tagged(true, 0, m.rw.STag(), 0, "")[:13]) }, 1, 0, 0, 0, ""},
		{"ULPDU_Length of 65535", func(m mrs) []byte { return bytes.Repeat([]byte{0xff}, 100) }, 2, 0, 3, 0, ""},
	}
	for _, c := range cases {
		bubble(t, c.name, llptest.Options{}, func(s *scene) {
			m := mrs{rw: s.MR(16, verbs.RemoteRead|verbs.RemoteWrite), none: s.MR(16, verbs.LocalWrite),
				inv: s.MR(16, verbs.RemoteWrite|verbs.RemoteInvalidate)}
			pd, err := s.Device.AllocPD()
			if err != nil {
				s.T.Fatal(err)
			}
			if m.other, err = pd.RegMR(make([]byte, 16), verbs.RemoteRead|verbs.RemoteWrite); err != nil {
				s.T.Fatal(err)
			}
			s.Recv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{m.none.SGE(0, 4)}}, verbs.RecvWR{ID: 2})
			p := s.accept(verbs.ConnParams{})
			p.write(fpdu(tagged(true, 0, 1, 0, ""))) // opens our side
			bad := c.frame(m)
			p.write(bad, fpdu(tagged(true, 0, m.rw.STag(), 0, "late"))) // the second is never looked at
			if q := p.wantTerminate(c.name, c.layer, c.typ, c.code); len(q) != c.quoted {
				s.T.Errorf("the Terminate quotes %d octets of headers, want %d: %x", len(q), c.quoted, q)
			}
			p.wantFIN("after a Terminate")
			if s.QP.State() != verbs.Terminate {
				s.T.Error(s.QP.State())
			}
			first, second := c.recv, "Work Request Flushed Error"
			if first == "" {
				first = second
			}
			if c.name == "third Send" {
				second = "success"
			}
			s.wantWCs("at once", "1 Recv "+first, "2 Recv "+second)
			s.Send(verbs.SendWR{ID: 3})
			s.wantWCs("posted after the fault", "3 Send Work Request Flushed Error")
			for _, mr := range []*verbs.MR{m.rw, m.none, m.inv, m.other} {
				if !bytes.Equal(mr.Bytes(), make([]byte, 16)) {
					s.T.Errorf("placed %q", mr.Bytes())
				}
			}
			if err := p.c.CloseWrite(); err != nil {
				s.T.Error(err)
			}
			synctest.Wait()
			select {
			case <-s.QP.Done():
			default:
				s.T.Error("not done after both FINs")
			}
			var te *verbs.TerminateError
			if !errors.As(s.QP.Err(), &te) || te.Remote || byte(te.Layer) != c.layer || te.Type != c.typ || te.Code != c.code {
				s.T.Error(s.QP.Err())
			}
			if st := s.QP.Stats(); st.TerminatesTx != 1 || st.TerminatesRx != 0 {
				s.T.Errorf("%+v", st)
			}
			s.wantWCs("no more")
		})
	}
	// Before the first good FPDU a responder may send nothing, not even a Terminate.
	bubble(t, "in the first FPDU", llptest.Options{}, func(s *scene) {
		p := s.accept(verbs.ConnParams{})
		p.write(bytes.Repeat([]byte{0xff}, 100))
		p.wantFIN("instead of a Terminate")
		p.c.Close()
		<-s.QP.Done()
	})
}

// A Read Response that is not what was asked for ends the Read in error.
func TestDialogueBadResponses(t *testing.T) {
	for name, f := range map[string]func(stag verbs.STag) []byte{
		"another STag":    func(stag verbs.STag) []byte { return tagged(true, 2, stag^1, 0, "data") },
		"another TO":      func(stag verbs.STag) []byte { return tagged(true, 2, stag, 1, "data") },
		"too long":        func(stag verbs.STag) []byte { return tagged(true, 2, stag, 0, "data!") },
		"too short":       func(stag verbs.STag) []byte { return tagged(true, 2, stag, 0, "dat") },
		"without its end": func(stag verbs.STag) []byte { return tagged(false, 2, stag, 0, "data") },
	} {
		bubble(t, name, llptest.Options{}, func(s *scene) {
			m := s.MR(16, verbs.LocalWrite)
			p := s.connect()
			s.Send(verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 4)}},
				verbs.SendWR{ID: 2, Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(4, 4)}})
			p.take("Read Requests", 2*len(fpdu(readRequest(1, 0, 0, 0, 0, 0))))
			p.write(fpdu(f(m.STag())))
			s.wantWCs(name, "1 Read bad response error", "2 Read Work Request Flushed Error")
			if !bytes.Equal(m.Bytes(), make([]byte, 16)) {
				s.T.Errorf("placed %q", m.Bytes())
			}
			p.fpdu("Terminate")
			p.wantFIN("after it")
		})
	}
	bubble(t, "sink deregistered", llptest.Options{}, func(s *scene) {
		m := s.MR(16, verbs.LocalWrite)
		p := s.connect()
		s.Send(verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 4)}})
		p.take("Read Request", len(fpdu(readRequest(1, 0, 0, 0, 0, 0))))
		if err := m.Dereg(); err != nil {
			s.T.Error(err)
		}
		p.write(fpdu(tagged(true, 2, m.STag(), 0, "data")))
		s.wantWCs("the program's own fault", "1 Read local protection error")
	})
}

// terminate is a peer's Terminate that quotes hdr.
func terminate(layer, typ, code byte, hdr []byte, rdma bool) []byte {
	c := []byte{layer<<4 | typ, code, 0, 0}
	if hdr != nil {
		c[2] = 0xc0
		if rdma {
			c[2] |= 0x20
		}
		c = append(c, 0, byte(len(hdr)))
		c = append(c, hdr...)
	}
	return fpdu(untagged(true, 7, 0, 2, 1, 0, string(c)))
}

// The work request that a peer's Terminate is about gets its status.
func TestDialogueTerminateReceived(t *testing.T) {
	const flushed = "Work Request Flushed Error"
	for _, c := range []struct {
		name  string
		frame []byte
		want  [3]string // of a Read, and of a Write and Send behind it
	}{
		{"Read", terminate(0, 1, 2, readRequest(1, 0, 0, 4, 5, 6), true), [3]string{"remote access error", flushed, flushed}},
		{"Read, local catastrophe", terminate(0, 2, 7, readRequest(1, 0, 0, 4, 5, 6), true), [3]string{"remote operation error", flushed, flushed}},
		{"Write", terminate(1, 1, 1, tagged(true, 0, 7, 8, ""), false), [3]string{flushed, "remote access error", flushed}},
		{"Send, no buffer", terminate(1, 2, 2, untagged(true, 3, 0, 0, 1, 0, ""), false), [3]string{flushed, flushed, "remote operation error"}},
		{"Send, too long", terminate(1, 2, 5, untagged(true, 3, 0, 0, 1, 0, ""), false), [3]string{flushed, flushed, "remote invalid request error"}},
		{"no headers", terminate(2, 0, 2, nil, false), [3]string{flushed, flushed, flushed}},
		{"a Write of someone else", terminate(1, 1, 1, tagged(true, 0, 8, 8, ""), false), [3]string{flushed, flushed, flushed}},
		{"a Write to elsewhere", terminate(1, 1, 1, tagged(true, 0, 7, 13, ""), false), [3]string{flushed, flushed, flushed}},
		{"a Read from elsewhere", terminate(0, 1, 1, readRequest(1, 0, 0, 4, 5, 5), true), [3]string{flushed, flushed, flushed}},
		{"a Send not sent yet", terminate(1, 2, 2, untagged(true, 3, 0, 0, 2, 0, ""), false), [3]string{flushed, flushed, flushed}},
		{"a Read Response of ours", terminate(1, 1, 0, tagged(true, 2, 5, 6, ""), false), [3]string{flushed, flushed, flushed}},
		{"nonsense", fpdu(untagged(true, 7, 0, 2, 1, 0, "x")), [3]string{flushed, flushed, flushed}},
	} {
		bubble(t, c.name, llptest.Options{}, func(s *scene) {
			m := s.MR(16, verbs.LocalWrite)
			p := s.connect()
			s.Send(verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 4)}, RemoteSTag: 5, RemoteTO: 6},
				verbs.SendWR{ID: 2, Op: verbs.OpWrite, SGL: []verbs.SGE{m.SGE(0, 4)}, RemoteSTag: 7, RemoteTO: 8},
				verbs.SendWR{ID: 3})
			for range 3 {
				p.fpdu("message")
			}
			p.write(c.frame, c.frame) // the second is not looked at
			s.wantWCs(c.name, "1 Read "+c.want[0], "2 Write "+c.want[1], "3 Send "+c.want[2])
			p.wantFIN("a Terminate is not answered by another")
			p.c.Close()
			<-s.QP.Done()
			var te *verbs.TerminateError
			if !errors.As(s.QP.Err(), &te) || !te.Remote {
				s.T.Error(s.QP.Err())
			}
			if n := s.Device.Stats().Terminates; n != 1 {
				s.T.Errorf("%d Terminates counted", n)
			}
		})
	}
	// In the middle of a long Write: what was begun ends with its FPDU, and nothing
	// follows.
	bubble(t, "during a Write", llptest.Options{EMSS: 1000, Space: 20000}, func(s *scene) {
		m := s.MR(1<<20, 0)
		p := s.connect()
		s.Send(verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{m.SGE(0, 1<<20)}, RemoteSTag: 9, Flags: verbs.Signaled})
		synctest.Wait() // until TCP's buffer is full
		p.write(terminate(1, 1, 0, tagged(false, 0, 9, 4096, ""), false))
		s.wantWCs("under way", "1 Write remote access error")
		n := 0
		for p.c.(*llptest.Conn).Unread() > 0 {
			p.fpdu("whole FPDUs only")
			n++
		}
		p.wantFIN("behind them")
		if n == 0 || n > 40 {
			s.T.Errorf("%d FPDUs", n)
		}
	})
}

func TestDialogueClose(t *testing.T) {
	bubble(t, "FIN of an idle peer", llptest.Options{}, func(s *scene) {
		s.Recv(verbs.RecvWR{ID: 1})
		p := s.accept(verbs.ConnParams{})
		p.c.CloseWrite()
		p.wantFIN("an answer")
		<-s.QP.Done()
		if s.QP.Err() != nil || s.QP.State() != verbs.Error {
			s.T.Error(s.QP.State(), s.QP.Err())
		}
		s.wantWCs("a receive nobody filled", "1 Recv Work Request Flushed Error")
	})
	bubble(t, "FIN before what was posted is sent", llptest.Options{}, func(s *scene) {
		p := s.accept(verbs.ConnParams{})
		p.write(fpdu(tagged(true, 0, 1, 0, "")))
		synctest.Wait()
		s.Send(verbs.SendWR{ID: 1, Flags: verbs.Signaled})
		p.c.CloseWrite()
		p.want("still", fpdu(untagged(true, 3, 0, 0, 1, 0, "")))
		p.wantFIN("then")
		s.wantWCs("the Send", "1 Send success")
	})
	for _, sent := range []bool{true, false} {
		bubble(t, fmt.Sprint("FIN instead of a Response, Read sent: ", sent), llptest.Options{}, func(s *scene) {
			p := s.connect()
			m := s.MR(4, verbs.LocalWrite)
			if !sent { // ORD many of them keep the last from going out
				for range verbs.DefaultDepth {
					s.Send(verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 4)}})
				}
			}
			s.Send(verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 4)}})
			synctest.Wait()
			p.c.CloseWrite()
			synctest.Wait()
			<-s.QP.Done()
			if !errors.Is(s.QP.Err(), verbs.ErrDisconnected) {
				s.T.Error(s.QP.Err())
			}
		})
	}
	bubble(t, "FIN within an FPDU", llptest.Options{}, func(s *scene) {
		s.Recv(verbs.RecvWR{ID: 1})
		p := s.accept(verbs.ConnParams{})
		f := fpdu(untagged(true, 3, 0, 0, 1, 0, ""))
		p.write(f[:len(f)-1])
		p.c.CloseWrite()
		<-s.QP.Done()
		if s.QP.Err() == nil {
			s.T.Error("taken for a graceful close")
		}
		s.wantWCs("half a Send", "1 Recv Work Request Flushed Error")
	})
	bubble(t, "RST", llptest.Options{}, func(s *scene) {
		m := s.MR(4, verbs.LocalWrite)
		p := s.connect()
		s.Recv(verbs.RecvWR{ID: 9})
		s.Send(verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 4)}}, verbs.SendWR{ID: 2, Op: verbs.OpWrite})
		synctest.Wait()
		p.c.Abort()
		<-s.QP.Done()
		if !errors.Is(s.QP.Err(), llp.ErrReset) {
			s.T.Error(s.QP.Err())
		}
		s.wantWCs("all", "1 Read Work Request Flushed Error", "2 Write Work Request Flushed Error", "9 Recv Work Request Flushed Error")
	})
	bubble(t, "Disconnect", llptest.Options{}, func(s *scene) {
		p := s.connect()
		s.Send(verbs.SendWR{ID: 1, Flags: verbs.Signaled})
		done := make(chan error, 1)
		go func() { done <- s.QP.Disconnect(context.Background()) }()
		p.want("what was posted", fpdu(untagged(true, 3, 0, 0, 1, 0, "")))
		p.wantFIN("then")
		if _, err := s.QP.PostSend(verbs.SendWR{ID: 2}); !errors.Is(err, verbs.ErrState) {
			s.T.Error("PostSend while closing:", err)
		}
		s.Recv(verbs.RecvWR{ID: 3})
		p.write(fpdu(untagged(true, 3, 0, 0, 1, 0, ""))) // the peer is not done yet
		s.wantWCs("both", "1 Send success", "3 Recv success")
		p.c.CloseWrite()
		if err := <-done; err != nil {
			s.T.Error(err)
		}
	})
	bubble(t, "Disconnect while the peer reads", llptest.Options{Space: 20000}, func(s *scene) {
		m := s.MR(1<<17, verbs.RemoteRead)
		p := s.accept(verbs.ConnParams{})
		p.write(fpdu(readRequest(1, 5, 0, 1<<16, m.STag(), 0)), fpdu(readRequest(2, 5, 1<<16, 1<<16, m.STag(), 1<<16)))
		synctest.Wait() // until TCP's buffer is full
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := s.QP.Disconnect(ctx); err != context.Canceled {
			s.T.Error(err)
		}
		for n := 0; n < 1<<17; {
			n += len(p.fpdu("Read Response")) - 14
		}
		p.wantFIN("when all was read")
		p.c.CloseWrite()
		<-s.QP.Done()
		for range 20 {
			if err := s.QP.Disconnect(ctx); err != nil { // it is over: what is there is returned
				s.T.Error(err)
			}
		}
	})
	bubble(t, "Disconnect from a silent peer", llptest.Options{}, func(s *scene) {
		p := s.connect()
		begin := time.Now()
		if err := s.QP.Disconnect(context.Background()); !errors.Is(err, verbs.ErrTimeout) {
			s.T.Error(err)
		}
		if d := time.Since(begin); d != 5*time.Second {
			s.T.Error("after", d)
		}
		p.wantReset("given up")
	})
	bubble(t, "Terminate to a silent peer", llptest.Options{}, func(s *scene) {
		p := s.connect()
		p.write(fpdu(nil))
		begin := time.Now()
		<-s.QP.Done()
		if d := time.Since(begin); d != 5*time.Second {
			s.T.Error("after", d)
		}
	})
	bubble(t, "Disconnect and a peer that talks on", llptest.Options{}, func(s *scene) {
		m := s.MR(4, verbs.RemoteWrite)
		p := s.accept(verbs.ConnParams{})
		done := make(chan error, 1)
		p.write(fpdu(tagged(true, 0, 1, 0, "")))
		go func() { done <- s.QP.Disconnect(context.Background()) }()
		for range 10 {
			time.Sleep(4 * time.Second)
			p.write(fpdu(tagged(true, 0, m.STag(), 0, "more")))
		}
		p.c.CloseWrite()
		if err := <-done; err != nil || string(m.Bytes()) != "more" {
			s.T.Errorf("%v %q", err, m.Bytes())
		}
	})
	bubble(t, "a closed window", llptest.Options{Space: 30000}, func(s *scene) {
		m := s.MR(1<<18, 0)
		p := s.connect()
		s.Send(verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{m.SGE(0, 1<<18)}, RemoteSTag: 9, Flags: verbs.Signaled})
		time.Sleep(30 * time.Second)
		s.wantWCs("nothing yet")
		for n := 0; n < 1<<18; {
			n += len(p.fpdu("Write")) - 14
		}
		s.wantWCs("no octet lost", "1 Write success")
		if s.QP.State() != verbs.RTS {
			s.T.Error(s.QP.Err())
		}
	})
	bubble(t, "Close", llptest.Options{}, func(s *scene) {
		s.Recv(verbs.RecvWR{ID: 1})
		p := s.connect()
		if err := s.QP.Close(); err != nil {
			s.T.Error(err)
		}
		p.wantReset("abrupt")
		s.wantWCs("flushed", "1 Recv Work Request Flushed Error")
		if !errors.Is(s.QP.Err(), verbs.ErrClosed) {
			s.T.Error(s.QP.Err())
		}
	})
}

// A peer's Reads and the program's own work take turns: neither holds the other up
// for more than a message.
func TestDialogueTurns(t *testing.T) {
	bubble(t, "Sends among Read Responses", llptest.Options{Space: 20000}, func(s *scene) {
		m := s.MR(1<<16, verbs.RemoteRead)
		p := s.accept(verbs.ConnParams{})
		for i := range uint32(verbs.DefaultDepth) {
			p.write(fpdu(readRequest(i+1, 5, 0, 1<<16, m.STag(), 0)))
		}
		synctest.Wait()
		s.Send(verbs.SendWR{}, verbs.SendWR{})
		ends, at := 0, []int(nil)
		for len(at) < 2 {
			switch u := p.fpdu("a message"); {
			case u[1]&15 == 3:
				at = append(at, ends)
			case u[0]&0x40 != 0:
				ends++
			}
		}
		if at[0] > 1 || at[1] > 2 {
			s.T.Errorf("Sends after %d of %d Read Responses", at, verbs.DefaultDepth)
		}
	})
	bubble(t, "Read Responses among Writes", llptest.Options{Space: 20000}, func(s *scene) {
		m := s.MR(1<<16, verbs.RemoteRead)
		p := s.accept(verbs.ConnParams{})
		p.write(fpdu(tagged(true, 0, 1, 0, "")))
		for range 10 {
			s.Send(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{m.SGE(0, 1<<16)}, RemoteSTag: 9})
		}
		synctest.Wait()
		p.write(fpdu(readRequest(1, 5, 0, 16, m.STag(), 0)), fpdu(readRequest(2, 5, 0, 16, m.STag(), 0)))
		ends, at := 0, []int(nil)
		for len(at) < 2 {
			switch u := p.fpdu("a message"); {
			case u[1]&15 == 2:
				at = append(at, ends)
			case u[0]&0x40 != 0:
				ends++
			}
		}
		if at[0] > 1 || at[1] > 2 {
			s.T.Errorf("Read Responses after %d of 10 Writes", at)
		}
	})
}

// Startups that go wrong, at the listener.
func TestDialogueStartup(t *testing.T) {
	bubble(t, "a silent peer holds up nobody", llptest.Options{}, func(s *scene) {
		silent, slow := s.dial(), s.dial()
		slow.write(request("hi")[:19])
		begin := time.Now()
		p := s.accept(verbs.ConnParams{})
		if time.Since(begin) != 0 {
			s.T.Error("waited for", time.Since(begin))
		}
		p.wantIdle("connected")
		time.Sleep(9 * time.Second)
		silent.wantIdle("within the time of a startup")
		time.Sleep(time.Second)
		silent.wantReset("after it")
		slow.wantReset("after it")
		if st := s.Device.Stats(); st.StartupFailures != 2 || st.Accepts != 1 {
			s.T.Errorf("%+v", st)
		}
	})
	t.Run("a flood", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t, llptest.Options{}, verbs.Config{MaxStartups: 4})
			var silent []*peer
			for range 10 {
				silent = append(silent, s.dial())
				synctest.Wait()
			}
			p := s.accept(verbs.ConnParams{})
			p.wantIdle("connected")
			for i, q := range silent[:6] {
				q.wantReset(fmt.Sprint("the oldest make room: ", i))
			}
			if n := s.Device.Stats().StartupEvictions; n != 7 {
				s.T.Errorf("%d evictions", n)
			}
		})
	})
	for name, b := range map[string][]byte{
		"HTTP":          []byte("GET / HTTP/1.1\r\n\r\n"),
		"a Reply":       reply(""),
		"revision 0":    bytes.Replace(request(""), []byte("\x40\x01"), []byte("\x40\x00"), 1),
		"513 octets":    startupFrame("MPA ID Req Frame", 0x40, string(make([]byte, 513))),
		"3 of RFC 6581": bytes.Replace(startupFrame("MPA ID Req Frame", 0x50, "abc"), []byte("\x50\x01"), []byte("\x50\x02"), 1),
	} {
		bubble(t, name, llptest.Options{}, func(s *scene) {
			p := s.dial()
			p.write(b)
			p.wantReset("no answer to what is no Request")
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			if r, err := s.l.Accept(ctx); err == nil {
				s.T.Errorf("Accept: %v", r)
			}
		})
	}
	bubble(t, "nobody answers the request", llptest.Options{}, func(s *scene) {
		p := s.dial()
		p.write(request(""))
		r, err := s.l.Accept(context.Background())
		if err != nil {
			s.T.Fatal(err)
		}
		if _, err := r.Accept(nil, verbs.ConnParams{}); !errors.Is(err, verbs.ErrInvalid) {
			s.T.Error(err)
		}
		if err := r.Reject(make([]byte, 513)); !errors.Is(err, verbs.ErrPrivateData) {
			s.T.Error(err)
		}
		p.wantIdle("the request still waits")
		s.Device.Close()
		p.wantReset("with the Device")
		if err := r.Reject(nil); !errors.Is(err, verbs.ErrState) {
			s.T.Error(err)
		}
	})
	bubble(t, "nobody accepts", llptest.Options{}, func(s *scene) {
		p := s.dial()
		p.write(request(""))
		p.wantIdle("waiting")
		s.l.Close()
		p.wantReset("with the Listener")
	})
	bubble(t, "Close while connecting", llptest.Options{}, func(s *scene) {
		l, err := s.stack.Listen(s.peerPort(), 1)
		if err != nil {
			s.T.Fatal(err)
		}
		defer l.Close()
		done := make(chan error, 1)
		go func() {
			_, err := s.QP.Connect(context.Background(), l.Addr(), verbs.ConnParams{Revision: 1})
			done <- err
		}()
		c, err := l.Accept(context.Background())
		if err != nil {
			s.T.Fatal(err)
		}
		p := &peer{s.T, c}
		p.want("Request", request(""))
		begin := time.Now()
		if err := s.QP.Close(); err != nil {
			s.T.Error(err)
		}
		if err := <-done; !errors.Is(err, verbs.ErrClosed) {
			s.T.Error(err)
		}
		if d := time.Since(begin); d != 0 {
			s.T.Error("after", d)
		}
		p.wantReset("given up")
	})
	bubble(t, "private data to the limit", llptest.Options{}, func(s *scene) {
		p := s.dial()
		long := string(bytes.Repeat([]byte("x"), 512))
		p.write(request(long))
		r, err := s.l.Accept(context.Background())
		if err != nil || string(r.PrivateData()) != long {
			s.T.Fatal(err)
		}
		if _, err := r.Accept(s.QP, verbs.ConnParams{PrivateData: []byte(long)}); err != nil {
			s.T.Fatal(err)
		}
		p.want("Reply", reply(long))
	})
	// The other role.
	for name, c := range map[string]struct {
		reply []byte
		is    error
		after time.Duration
	}{
		"silence":   {nil, verbs.ErrStartupTimeout, 10 * time.Second},
		"a Request": {request(""), nil, 0},
		"half":      {reply("")[:10], verbs.ErrStartupTimeout, 10 * time.Second},
		"junk":      {[]byte("HTTP/1.1 400 Bad Request"), nil, 0},
	} {
		bubble(t, "initiator: "+name, llptest.Options{}, func(s *scene) {
			_, err := s.stack.Listen(deviceAddr, 1)
			if err == nil {
				s.T.Fatal("address in use")
			}
			l, err := s.stack.Listen(s.peerPort(), 1)
			if err != nil {
				s.T.Fatal(err)
			}
			defer l.Close()
			done := make(chan error, 1)
			begin := time.Now()
			go func() {
				_, err := s.QP.Connect(context.Background(), l.Addr(), verbs.ConnParams{Revision: 1})
				done <- err
			}()
			conn, err := l.Accept(context.Background())
			if err != nil {
				s.T.Fatal(err)
			}
			p := &peer{s.T, conn}
			p.want("Request", request(""))
			if c.reply != nil {
				p.write(c.reply)
			}
			if err = <-done; err == nil || c.is != nil && !errors.Is(err, c.is) {
				s.T.Error(err)
			}
			if d := time.Since(begin); d != c.after {
				s.T.Error("after", d)
			}
			p.wantReset("given up")
			if s.QP.State() != verbs.Idle {
				s.T.Error(s.QP.State())
			}
		})
	}
}

// A Read on a connection that allows none is refused, not queued for ever.
func TestNoORD(t *testing.T) {
	bubble(t, "ORD 0", llptest.Options{}, func(s *scene) {
		p := s.accept(verbs.ConnParams{ORD: -1, IRD: -1})
		m := s.MR(4, verbs.LocalWrite|verbs.RemoteRead)
		if n, err := s.QP.PostSend(verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 4)}}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			s.T.Error(n, err)
		}
		p.write(fpdu(tagged(true, 0, 1, 0, "")), fpdu(readRequest(1, 1, 0, 4, m.STag(), 0)))
		p.wantTerminate("a Read beyond the IRD of 0", 1, 2, 2)
	})
}

// A peer that asks for a Read and then takes nothing does not hold up Dereg: what
// fitted into TCP was copied before, and in place of the rest comes a Terminate.
func TestDialogueStalledReader(t *testing.T) {
	bubble(t, "Dereg", llptest.Options{Space: 16 << 10}, func(s *scene) {
		const size = 64 << 10
		m := s.MR(size, verbs.RemoteRead)
		for i := range m.Bytes() {
			m.Bytes()[i] = 'a'
		}
		p := s.accept(verbs.ConnParams{})
		p.write(fpdu(readRequest(1, 0x11, 0, size, m.STag(), 0)))
		synctest.Wait()
		if n := s.QP.Stats().TxOctets; n == 0 || n > 16<<10 {
			s.T.Fatalf("%d octets of the Response left, want as many as TCP takes", n)
		}
		begin := time.Now()
		if err := m.Dereg(); err != nil {
			s.T.Error(err)
		}
		if d := time.Since(begin); d != 0 {
			s.T.Errorf("Dereg waited %v for the peer", d)
		}
		for i := range m.Bytes() {
			m.Bytes()[i] = 'b' // the program's own again
		}
		got := 0
		for {
			u := p.fpdu("a segment of the Response, or the Terminate")
			if u[0]&0x80 == 0 {
				if !bytes.HasPrefix(u[18:], []byte{0x01, 0x00}) {
					s.T.Errorf("%x, want a Terminate about an invalid STag", u)
				}
				break
			}
			got += len(u) - 14
			if i := bytes.IndexFunc(u[14:], func(r rune) bool { return r != 'a' }); i >= 0 {
				s.T.Fatalf("%q was read after Dereg", u[14+i])
			}
		}
		if got == 0 || got >= size {
			s.T.Errorf("%d octets of the Response came, want some", got)
		}
		p.wantFIN("after the Terminate")
	})
}

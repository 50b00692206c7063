package verbs_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/verbs"
)

// FuzzPeer: whatever a peer sends after the startup, nothing panics, nothing is
// written beyond what the peer has a right to, every work request completes once,
// and the QP ends when the peer goes. The input is a run of ULPDUs, each behind its
// length in one octet; 255 stands for 1000 octets to come. The STags in it, 1 to 3,
// are replaced by those of real memory.
func FuzzPeer(f *testing.F) {
	seed := func(ulpdus ...[]byte) {
		var b []byte
		for _, u := range ulpdus {
			b = append(append(b, byte(len(u))), u...)
		}
		f.Add(b, uint8(len(b)))
	}
	seed(untagged(true, 3, 0, 0, 1, 0, "send"), untagged(true, 5, 0, 0, 2, 0, ""))
	seed(untagged(false, 4, 3, 0, 1, 0, "se"), untagged(true, 4, 3, 0, 1, 2, "nd"))
	seed(tagged(false, 0, 1, 0, "write"), tagged(true, 0, 1, 5, "s"))
	seed(readRequest(1, 9, 9, 16, 2, 0), readRequest(2, 9, 9, 0, 0, 0))
	seed(tagged(true, 2, 1, 0, "unasked"))
	seed(untagged(true, 7, 0, 2, 1, 0, "\x01\x00\xc0\x00\x00\x0e"+string(tagged(true, 0, 7, 0, ""))))
	seed(untagged(true, 3, 0, 0, 2, 0, "MSN"), untagged(true, 3, 0, 7, 1, 0, "QN"))
	f.Fuzz(func(t *testing.T, input []byte, cut uint8) {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t, llptest.Options{Cut: func(n int) int { return 1 + int(cut)%n }}, verbs.Config{})
			const guard = 64
			buf := make([]byte, guard+100+guard)
			region := func(access verbs.Access) *verbs.MR {
				m, err := s.PD.RegMR(buf[guard:guard+100:guard+100], access)
				if err != nil {
					t.Fatal(err)
				}
				return m
			}
			mrs := []*verbs.MR{region(verbs.RemoteWrite), region(verbs.RemoteRead), region(verbs.RemoteInvalidate | verbs.RemoteRead)}
			sink := s.MR(50, verbs.LocalWrite)
			for i := range uint64(4) {
				s.Recv(verbs.RecvWR{ID: i, SGL: []verbs.SGE{sink.SGE(0, 10), sink.SGE(20, 10)}})
			}
			p := s.accept(verbs.ConnParams{})
			for n := 0; len(input) > 0 && n < 100; n++ {
				k := int(input[0])
				if k == 255 {
					k = 1000
				}
				k = min(k, len(input)-1)
				u := bytes.Clone(input[1 : 1+k])
				input = input[1+k:]
				for _, at := range []int{2, 34} { // of a tagged segment, a Send with Invalidate, a Read Request's source
					if len(u) >= at+4 {
						if i := binary.BigEndian.Uint32(u[at:]); i >= 1 && i <= 3 {
							binary.BigEndian.PutUint32(u[at:], uint32(mrs[i-1].STag()))
						}
					}
				}
				p.write(fpdu(u))
			}
			synctest.Wait()
			posted := []uint64{100, 101}
			for _, id := range posted {
				if k, err := s.QP.PostSend(verbs.SendWR{ID: id, Op: verbs.OpWrite, Data: []byte("x"), Flags: verbs.Inline | verbs.Signaled, RemoteSTag: 1}); k != 1 {
					t.Errorf("state %v: %v", s.QP.State(), err)
				}
			}
			for {
				synctest.Wait()
				got, err := p.c.Receive(1, 1<<16)
				if err == io.EOF || len(got) == 0 {
					break
				}
				if err := p.c.Consume(len(bytes.Join(got, nil))); err != nil {
					t.Fatal(err)
				}
			}
			p.c.CloseWrite()
			time.Sleep(time.Minute) // of the bubble's
			select {
			case <-s.QP.Done():
			default:
				t.Fatalf("state %v a minute after the peer had gone", s.QP.State())
			}
			var wcs [64]verbs.WC
			n, err := s.CQ.Poll(wcs[:])
			if err != nil {
				t.Fatal(err)
			}
			var recvs, sends []uint64
			for _, wc := range wcs[:n] {
				if wc.Op == verbs.OpRecv {
					recvs = append(recvs, wc.ID)
				} else {
					sends = append(sends, wc.ID)
				}
			}
			if !slices.Equal(recvs, []uint64{0, 1, 2, 3}) || !slices.Equal(sends, posted) {
				t.Errorf("completed receives %v, sends %v", recvs, sends)
			}
			if !bytes.Equal(buf[:guard], make([]byte, guard)) || !bytes.Equal(buf[guard+100:], make([]byte, guard)) ||
				!bytes.Equal(sink.Bytes()[10:20], make([]byte, 10)) || !bytes.Equal(sink.Bytes()[30:], make([]byte, 20)) {
				t.Error("written beyond what the peer has a right to")
			}
		})
	})
}

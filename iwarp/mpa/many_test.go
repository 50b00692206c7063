package mpa

import (
	"testing"

	"github.com/softrnic/softrnic/iwarp/llp/llptest"
)

// One TCP segment may hold any number of FPDUs (RFC 5044 section 5.2), and the last
// of them may be cut.
func TestFiftyFPDUsInASegment(t *testing.T) {
	la, lb := llptest.Pipe(llptest.Options{EMSS: 8920})
	c := newConn(lb, Peer{}, true, 0, 0, false)
	var seg []byte
	for i := range 51 {
		seg = AppendFPDU(seg, make([]byte, 18+i), true)
	}
	cut := len(seg) - 5
	la.Send(&octets{seg[:cut]})
	n := &count{}
	if _, err := c.Receive(1<<16, n); err != nil || n.n != 50 {
		t.Errorf("%d ULPDUs, %v", n.n, err)
	}
	la.Send(&octets{seg[cut:]})
	if _, err := c.Receive(1<<16, n); err != nil || n.n != 51 {
		t.Errorf("%d ULPDUs with the rest, %v", n.n, err)
	}
}

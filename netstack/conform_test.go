package netstack

import (
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
)

// gVisor's TCP keeps the contract that everything above was tested against.
func TestConform(t *testing.T) {
	for _, mtu := range []int{576, 1500, 9000, 65521} {
		for _, v6 := range []bool{false, true} {
			if v6 && mtu < 1280 {
				continue
			}
			t.Run(fmt.Sprintf("MTU %d, IPv6 %v", mtu, v6), func(t *testing.T) {
				llptest.Conform(t, func(t *testing.T) (a, b llp.Conn) {
					x, y := stacks(t, mtu, allOffloads, Config{})
					ca, cb := connect(t, x, y, v6)
					return ca.Conn, cb.Conn
				})
			})
		}
	}
}

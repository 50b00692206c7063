//go:build !linux

package netstack

import (
	"testing"

	"github.com/softrnic/softrnic/tap"
)

// tapPair is two TAPs on a bridge, which only Linux has.
func tapPair(b *testing.B) (x, y tap.Device) {
	b.Skip("TAPs on a bridge: need Linux")
	return nil, nil
}

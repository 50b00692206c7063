package netstack

import (
	"net"

	"github.com/softrnic/softrnic/tap"
)

// Check says what is wrong with c that does not depend on the device, so that a
// program can refuse it before it makes one.
func (c Config) Check() error {
	_, err := c.settled(anyDevice{})
	return err
}

// anyDevice stands for a device that takes everything.
type anyDevice struct{ tap.Device }

func (anyDevice) Name() string          { return "the device" }
func (anyDevice) MTU() int              { return MaxMTU }
func (anyDevice) MAC() net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, 1} }

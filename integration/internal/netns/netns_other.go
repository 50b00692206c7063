//go:build !linux

package netns

import (
	"errors"
	"net/netip"
	"os/exec"
)

// Bridge is the name of the bridge in a Lab.
const Bridge = "br0"

var errOS = errors.New("netns: network namespaces are Linux's")

// Lab cannot be made on this OS.
type Lab struct{}

// New always fails.
func New() (*Lab, error) { return nil, errOS }

// Close does nothing.
func (*Lab) Close() error { return nil }

// Do always fails.
func (*Lab) Do(func() error) error { return errOS }

// TAP always fails.
func (*Lab) TAP(string, int) error { return errOS }

// Attach always fails.
func (*Lab) Attach(string, int) error { return errOS }

// Host always fails.
func (*Lab) Host(string, int, netip.Prefix) (func(func() error) error, error) { return nil, errOS }

// Start always fails.
func (*Lab) Start(*exec.Cmd) error { return errOS }

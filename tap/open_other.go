//go:build !linux

package tap

import "net"

// TAP is a TAP interface; this operating system has none.
type TAP struct{}

// Open fails with ErrUnsupported; use taptest.Pipe, or a Device of your own.
func Open(cfg Config) (*TAP, error) {
	if err := cfg.check("open"); err != nil {
		return nil, err
	}
	return nil, &Error{Op: "open", Name: cfg.Name, Err: ErrUnsupported, Remedy: "run it on Linux, or use an in-memory device"}
}

// Create fails with ErrUnsupported.
func Create(cfg Config) error { _, err := Open(cfg); return err }

// Delete fails with ErrUnsupported.
func Delete(name string) error { return &Error{Op: "delete", Name: name, Err: ErrUnsupported} }

// List fails with ErrUnsupported.
func List() ([]Info, error) { return nil, &Error{Op: "list", Name: "interfaces", Err: ErrUnsupported} }

// Name implements Device.
func (t *TAP) Name() string { return "" }

// MTU implements Device.
func (t *TAP) MTU() int { return 0 }

// MAC implements Device.
func (t *TAP) MAC() net.HardwareAddr { return nil }

// Offloads implements Device.
func (t *TAP) Offloads() Offload { return 0 }

// Queues implements Device.
func (t *TAP) Queues() []Queue { return nil }

// Close implements Device.
func (t *TAP) Close() error { return ErrClosed }

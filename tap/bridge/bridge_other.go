//go:build !linux

package bridge

// Attach fails with ErrUnsupported.
func Attach(bridge, iface string, o Options) ([]string, error) { return nil, ErrUnsupported }

// Detach fails with ErrUnsupported.
func Detach(iface string, o Options) ([]string, error) { return nil, ErrUnsupported }

// Show fails with ErrUnsupported.
func Show(name string) ([]Info, error) { return nil, ErrUnsupported }

// Command softrnic turns an Ethernet device into an RDMA NIC (iWARP), and has the
// tools to try it. Results go to stdout, logs to stderr. It exits with 0 when all
// went well, 1 when something failed, and 2 when it was not asked properly; then
// nothing was made or changed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signalContext()
	defer stop()
	err := newRootCmd().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "softrnic:", oneLine(err))
	var u *usageError
	if errors.As(err, &u) {
		return 2
	}
	return 1
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// usageError says that a command was not asked properly.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// signalContext ends with an interrupt.
func signalContext() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

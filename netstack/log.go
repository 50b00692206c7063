package netstack

import (
	"time"

	"gvisor.dev/gvisor/pkg/log"
)

// gVisor logs to stderr, for the whole process and with no stack's name, such as a
// warning for each SYN that comes twice. Its counters, which Stats shows, say the
// same; what a program logs is the business of Config.Logger.
func init() { log.SetTarget(quiet{}) }

// quiet is a log.Emitter that drops everything.
type quiet struct{}

// Emit implements log.Emitter.
func (quiet) Emit(depth int, level log.Level, now time.Time, format string, args ...any) {}

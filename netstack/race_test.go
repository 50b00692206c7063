//go:build race

package netstack

// raceEnabled: the race detector makes sync.Pool forget, so allocations cannot be
// counted.
const raceEnabled = true

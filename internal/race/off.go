//go:build !race

// Package race tells tests whether the race detector is on: it makes sync.Pool
// forgetful, so that allocations cannot be counted.
package race

// Enabled says whether the race detector is on.
const Enabled = false

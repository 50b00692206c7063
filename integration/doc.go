// Package integration tests the whole of SoftRNIC: the shape of the source tree
// (who imports whom, who copies octets), two RNICs over an Ethernet in memory
// with and without faults, over real TAPs on a bridge, and against Linux siw in
// a QEMU guest. It holds tests only; its folder bench is a program.
//
// The rungs and what they need are in CONTRIBUTING.md. A test that cannot run
// says what is missing; with CI=true in the environment it fails instead.
package integration

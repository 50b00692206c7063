// Package taptest is an Ethernet in memory: two devices joined by a wire, for any
// operating system and without privileges; faults on demand, from a seed, on that
// wire or on real TAPs; and a relay that joins any two devices, the wire with faults
// between two TAPs of a host.
package taptest

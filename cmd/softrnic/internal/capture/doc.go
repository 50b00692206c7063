// Package capture reads packet captures: files of packets (reader.go), TCP
// segments in packets (packet.go), and octets in order from segments (half.go).
// It streams: what it holds is bounded whatever the file says.
package capture

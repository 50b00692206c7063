// Package tap owns Ethernet devices: it makes them or is given them, and moves
// frames with virtio-net headers in batches. It knows nothing of IP. The MTU is
// always the largest IP packet in octets; a frame is 14 octets longer, or 18
// with a VLAN tag. Memory of a frame belongs to the caller and is used only
// during the call.
package tap

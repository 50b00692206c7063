// Package ddp places messages directly in the memory they are meant for (RFC
// 5041).
//
// A message travels as segments, each a ULPDU of its own. A tagged segment names
// its place by STag and TO. An untagged one names a queue (QN), a message in it
// (MSN) and an offset (MO); the place is a buffer that the receiver provides. Each
// segment says where it goes, so nothing is reassembled; the last one of a
// message carries the flag L, and the message is delivered when it came.
//
// What the octets mean, which buffers there are, and who may touch which region
// is the Handler's business. Segments of a message are expected in order: section
// 5.3 asks the sender for increasing MO, and TCP keeps the order.
package ddp

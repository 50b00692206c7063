// Package rdmap turns messages into Sends, RDMA Writes, RDMA Reads and the
// Terminate that ends a stream (RFC 5040).
//
//	message                DDP        queue
//	RDMA Write             tagged
//	RDMA Read Request      untagged   QN 1, answered by
//	RDMA Read Response     tagged
//	Send, with Invalidate  untagged   QN 0
//	and/or Solicited Event
//	Terminate              untagged   QN 2
//
// A Stream takes messages to send from a WorkSource and tells an Owner what came
// of them and what came in. Read Requests of ours wait in the ORQ for their
// Response, those of the peer in the IRQ for theirs. Every fault becomes a
// Terminate by one table (errors.go).
package rdmap

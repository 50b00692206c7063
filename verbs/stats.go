package verbs

import "sync/atomic"

// DeviceStats counts what a Device has done, and what it holds.
type DeviceStats struct {
	Connects, Accepts  uint64 // connections made, by role
	Rejects            uint64 // refused by us
	StartupFailures    uint64 // of incoming connections
	StartupEvictions   uint64 // startups reset for newer ones
	Terminates         uint64 // connections ended by a Terminate, of either side
	PDs, CQs, QPs, MRs int    // at this moment
}

type deviceStats struct {
	connects, accepts, rejects, startupFailures, startupEvictions, terminates atomic.Uint64
}

// Stats returns a copy of the counters.
func (d *Device) Stats() DeviceStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.stats
	return DeviceStats{Connects: s.connects.Load(), Accepts: s.accepts.Load(), Rejects: s.rejects.Load(),
		StartupFailures: s.startupFailures.Load(), StartupEvictions: s.startupEvictions.Load(), Terminates: s.terminates.Load(),
		PDs: len(d.pds), CQs: len(d.cqs), QPs: len(d.qps), MRs: d.table.Len()}
}

// QPStats counts what a QP's connection has done. Octets are those of ULPDUs:
// payload with DDP's and RDMAP's headers.
type QPStats struct {
	SendsTx, WritesTx, ReadRequestsTx, ReadResponsesTx uint64 // messages that TCP took
	SendsRx, WritesRx, ReadRequestsRx, ReadResponsesRx uint64 // messages that came in whole
	TerminatesTx, TerminatesRx                         uint64

	TxFPDUs, TxOctets uint64
	TxBatches         uint64 // super-packets
	TxNoSpace         uint64 // times that TCP's send buffer was full
	RxFPDUs, RxOctets uint64
	RxSplit           uint64 // FPDUs that lay in the memory of several segments
	RxErrors          uint64 // FPDUs with a bad CRC or length

	SendWRs, RecvWRs int // posted and not completed at this moment
}

// Stats returns a copy of the counters, also after the connection has ended. They
// are 0 before it is up.
func (q *QP) Stats() QPStats {
	q.mu.Lock()
	stream := q.stream
	q.mu.Unlock()
	t := QPStats{SendWRs: q.send.depth(), RecvWRs: q.recv.depth()}
	if stream == nil {
		return t
	}
	s := stream.Stats()
	t.SendsTx, t.WritesTx = s.SendsTx.Load(), s.WritesTx.Load()
	t.ReadRequestsTx, t.ReadResponsesTx = s.ReadRequestsTx.Load(), s.ReadResponsesTx.Load()
	t.SendsRx, t.WritesRx = s.SendsRx.Load(), s.WritesRx.Load()
	t.ReadRequestsRx, t.ReadResponsesRx = s.ReadRequestsRx.Load(), s.ReadResponsesRx.Load()
	t.TerminatesTx, t.TerminatesRx = s.TerminatesTx.Load(), s.TerminatesRx.Load()
	m := stream.Conn.Stats()
	t.TxFPDUs, t.TxOctets, t.TxBatches, t.TxNoSpace = m.TxFPDUs, m.TxOctets, m.TxBatches, m.TxNoSpace
	t.RxFPDUs, t.RxOctets, t.RxSplit, t.RxErrors = m.RxFPDUs, m.RxOctets, m.RxSplit, m.RxErrors
	return t
}

func (s *sendQueue) depth() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.tail - s.head)
}

func (r *recvQueue) depth() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int(r.tail - r.head)
}

package netstack

import "sync/atomic"

// counters are what the link endpoint counts. Names are those of Stats.
type counters struct {
	rxFrames, rxOctets, rxSuper, rxBad, rxOther, rxVLAN, rxUnverified atomic.Uint64
	rxSleeps, rxSpun                                                  atomic.Uint64
	txFrames, txOctets, txSuper, txCut, txErrors                      atomic.Uint64
	acksHeld, acksSpared                                              atomic.Uint64
	connsOpened, connsAccepted, connsFailed                           atomic.Uint64
}

// Stats are a Stack's counters since New. Frames are as they crossed the device: a
// super-packet is one.
type Stats struct {
	RxFrames     uint64 // frames received and taken
	RxOctets     uint64 // their octets, Ethernet's header included
	RxSuper      uint64 // of those, super-packets
	RxBad        uint64 // dropped: shorter than their headers
	RxOther      uint64 // dropped: for another MAC, or not IP or ARP
	RxVLAN       uint64 // dropped: with another VLAN tag than ours
	RxUnverified uint64 // taken, checksum to be verified in software
	RxSleeps     uint64 // times that a receive loop slept
	RxSpun       uint64 // times that it found a frame by looking again

	TxFrames uint64 // frames given to the device
	TxOctets uint64
	TxSuper  uint64 // of those, super-packets
	TxCut    uint64 // TCP packets that left as several frames: for alignment, or for want of TSO
	TxErrors uint64 // frames that the device refused

	ACKsHeld   uint64 // pure ACKs held back for a moment
	ACKsSpared uint64 // of those, never sent: a later segment said the same or more

	ConnsOpened   uint64 // connections that Dial made
	ConnsAccepted uint64 // connections that Accept returned
	ConnsFailed   uint64 // Dials that failed
	Flows         uint64 // connections that are known to the link endpoint now

	TCPRetransmits     uint64 // segments sent again
	TCPTimeouts        uint64 // retransmission timers that ran out
	TCPFastRecoveries  uint64 // loss recoveries without a timer, SACK's included
	TCPChecksumErrors  uint64 // segments with a wrong checksum
	TCPResetsSent      uint64
	TCPResetsReceived  uint64
	TCPListenOverflows uint64 // SYNs and ACKs dropped at a full backlog
	TCPSYNCookies      uint64 // SYN-ACKs sent as cookies
	IPMalformed        uint64 // packets with a bad IP header
}

// Stats returns the counters of now. Any goroutine may call it.
func (s *Stack) Stats() Stats {
	c, t, ip := &s.link.count, s.ns.Stats().TCP, s.ns.Stats().IP
	return Stats{
		RxFrames: c.rxFrames.Load(), RxOctets: c.rxOctets.Load(), RxSuper: c.rxSuper.Load(), RxBad: c.rxBad.Load(),
		RxOther: c.rxOther.Load(), RxVLAN: c.rxVLAN.Load(), RxUnverified: c.rxUnverified.Load(),
		RxSleeps: c.rxSleeps.Load(), RxSpun: c.rxSpun.Load(),
		TxFrames: c.txFrames.Load(), TxOctets: c.txOctets.Load(), TxSuper: c.txSuper.Load(), TxCut: c.txCut.Load(), TxErrors: c.txErrors.Load(),
		ACKsHeld: c.acksHeld.Load(), ACKsSpared: c.acksSpared.Load(),
		ConnsOpened: c.connsOpened.Load(), ConnsAccepted: c.connsAccepted.Load(), ConnsFailed: c.connsFailed.Load(),
		Flows:              uint64(s.link.flows.len()),
		TCPRetransmits:     t.Retransmits.Value(),
		TCPTimeouts:        t.Timeouts.Value(),
		TCPFastRecoveries:  t.FastRecovery.Value() + t.SACKRecovery.Value(),
		TCPChecksumErrors:  t.ChecksumErrors.Value(),
		TCPResetsSent:      t.ResetsSent.Value(),
		TCPResetsReceived:  t.ResetsReceived.Value(),
		TCPListenOverflows: t.ListenOverflowSynDrop.Value() + t.ListenOverflowAckDrop.Value(),
		TCPSYNCookies:      t.ListenOverflowSynCookieSent.Value(),
		IPMalformed:        ip.MalformedPacketsReceived.Value(),
	}
}

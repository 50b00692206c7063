package verbs

import "fmt"

// State is the state of a QP. RFC 5040 section 6.2 gives the teardown.
//
//	Idle ─Established→ RTS ─Disconnect, PeerFIN→ Closing ─LLPClosed→ Error
//	                    ├──Fault, PeerTerminate→ Terminate ─LLPClosed→ Error
//	                    └──LLPLost, Abort──────────────────────────→ Error
//
// Error is where every QP ends, as in ibverbs, after a graceful close too: Err
// tells the two apart. A QP is connected once.
type State uint8

const (
	Idle      State = iota // receives may be posted; not connected yet
	RTS                    // connected
	Closing                // a graceful close is under way
	Terminate              // a fault ended the stream; the close is under way
	Error                  // over: what is posted is flushed at once
)

var stateNames = [...]string{"Idle", "RTS", "Closing", "Terminate", "Error"}

func (s State) String() string { return stateNames[s] }

// event is what moves a QP from one state to another.
type event uint8

const (
	established   event = iota // the MPA startup is done
	disconnect                 // the program asked for a graceful close
	peerFIN                    // the peer closed its side, between two messages
	fault                      // we found a fault: a Terminate goes out
	peerTerminate              // a Terminate came in
	llpClosed                  // both sides have closed, or the wait for it was given up
	llpLost                    // reset, timeout, or FIN within a message
	abort                      // the program closed the QP
)

var eventNames = [...]string{"established", "disconnect", "peerFIN", "fault", "peerTerminate", "llpClosed", "llpLost", "abort"}

func (e event) String() string { return eventNames[e] }

type step struct {
	state State
	event event
}

// transitions lists every pair of state and event that can happen. The others
// leave the state as it is: next says which.
var transitions = map[step]State{
	{Idle, established}: RTS,
	{Idle, abort}:       Error,

	{RTS, disconnect}:    Closing,
	{RTS, peerFIN}:       Closing, // what was posted still goes out (RFC 5041 section 6.2.1)
	{RTS, fault}:         Terminate,
	{RTS, peerTerminate}: Terminate,
	{RTS, llpLost}:       Error,
	{RTS, abort}:         Error,

	{Closing, disconnect}:    Closing,
	{Closing, peerFIN}:       Closing, // both close at once
	{Closing, fault}:         Terminate,
	{Closing, peerTerminate}: Terminate,
	{Closing, llpClosed}:     Error,
	{Closing, llpLost}:       Error,
	{Closing, abort}:         Error,

	{Terminate, disconnect}:    Terminate,
	{Terminate, peerFIN}:       Terminate,
	{Terminate, fault}:         Terminate, // the first fault wins (RFC 5040 section 7.1)
	{Terminate, peerTerminate}: Terminate, // crossed: not answered
	{Terminate, llpClosed}:     Error,
	{Terminate, llpLost}:       Error,
	{Terminate, abort}:         Error,

	{Error, disconnect}: Error,
	{Error, abort}:      Error,
	{Error, llpClosed}:  Error,
	{Error, llpLost}:    Error,
}

// next applies e to s. A pair that cannot happen is a bug of ours.
func (s State) next(e event) State {
	t, ok := transitions[step{s, e}]
	if !ok {
		panic(fmt.Sprintf("verbs: event %v in state %v", e, s))
	}
	return t
}

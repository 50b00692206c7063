package mpa

import (
	"errors"
	"fmt"
)

// Code is an error code of the LLP layer in a Terminate message (RFC 5044
// section 8, RFC 6581 section 8).
type Code uint8

const (
	CodeClosed Code = 1 // TCP connection closed, terminated or lost
	CodeCRC    Code = 2 // received CRC does not match the calculated one
	CodeMarker Code = 3 // marker and ULPDU_Length field do not match
	CodeFrame  Code = 4 // invalid Request or Reply frame
	CodeLocal  Code = 5 // local catastrophic error
	CodeIRD    Code = 6 // insufficient IRD resources
	CodeRTR    Code = 7 // no matching RTR option
)

// Error is a violation of RFC 5044 or RFC 6581 by the peer. Nothing more is
// delivered on a stream after one.
type Error struct {
	Code   Code
	Detail string // what was found, with its value
}

func (e *Error) Error() string { return fmt.Sprintf("mpa: %s (LLP error %d)", e.Detail, e.Code) }

func errorf(code Code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

var (
	// ErrShort says that a parser needs more octets.
	ErrShort = errors.New("mpa: incomplete frame")
	// ErrPrivateData says that private data are longer than a frame can carry.
	ErrPrivateData = errors.New("mpa: private data too long")
	// ErrMarkers says that the peer wants to receive markers, which this version
	// does not send (RFC 5044 section 4.3).
	ErrMarkers = errors.New("mpa: the peer demands markers (M=1), which are not supported")
	// ErrTimeout says that the peer did not finish the startup in time.
	ErrTimeout = errors.New("mpa: startup timed out")
	// ErrNotOpen says that a responder may not send before it has received an
	// FPDU (RFC 5044 section 7.1.2, rule 4).
	ErrNotOpen = errors.New("mpa: the initiator has not sent its first FPDU")
)

// RejectedError says that the responder refused the connection.
type RejectedError struct {
	Peer Peer // with the private data of the refusal
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("mpa: connection rejected by the peer with %d octets of private data", len(e.Peer.PrivateData))
}

// GatherError says that the payload of a ULPDU could not be read. The ULPDUs
// before it were sent.
type GatherError struct {
	Index int // of the ULPDU, among those that Send took from its source
	Err   error
}

func (e *GatherError) Error() string { return e.Err.Error() }
func (e *GatherError) Unwrap() error { return e.Err }

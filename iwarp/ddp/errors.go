package ddp

import (
	"errors"
	"fmt"
)

// Type is an error type of the DDP layer (RFC 5041 section 7.2).
type Type uint8

const (
	TypeLocal    Type = 0 // local catastrophic error
	TypeTagged   Type = 1 // tagged buffer error
	TypeUntagged Type = 2 // untagged buffer error
)

// Error codes of TypeTagged and TypeUntagged (RFC 5041 section 7.2).
const (
	CodeSTag          uint8 = 0 // invalid STag
	CodeBounds        uint8 = 1 // base or bounds violation
	CodeAssociation   uint8 = 2 // STag not associated with the stream
	CodeWrap          uint8 = 3 // TO wrap
	CodeTaggedVersion uint8 = 4 // invalid DDP version

	CodeQN              uint8 = 1 // invalid QN
	CodeNoBuffer        uint8 = 2 // invalid MSN: no buffer available
	CodeMSN             uint8 = 3 // invalid MSN: not in the valid range
	CodeMO              uint8 = 4 // invalid MO
	CodeTooLong         uint8 = 5 // message too long for the buffer
	CodeUntaggedVersion uint8 = 6 // invalid DDP version
)

// Error is a violation of RFC 5041 by the peer, as its wire codes.
type Error struct {
	Type   Type
	Code   uint8
	Detail string // what was found, with its value
}

func (e *Error) Error() string { return "ddp: " + e.Detail }

// BufferError says that an untagged buffer, which this side provided, could not be
// written: a fault of ours.
type BufferError struct{ Err error }

func (e *BufferError) Error() string { return "ddp: untagged buffer: " + e.Err.Error() }
func (e *BufferError) Unwrap() error { return e.Err }

func untaggedError(code uint8, format string, args ...any) error {
	return &Error{TypeUntagged, code, fmt.Sprintf(format, args...)}
}

var (
	// ErrShort says that a segment is shorter than its header. The RFC has no
	// code for it.
	ErrShort = errors.New("ddp: segment shorter than its header")

	errTaggedVersion   = &Error{TypeTagged, CodeTaggedVersion, "tagged segment of a DDP version other than 1 (RFC 5041 section 7.2)"}
	errUntaggedVersion = &Error{TypeUntagged, CodeUntaggedVersion, "untagged segment of a DDP version other than 1 (RFC 5041 section 7.2)"}
)

package rdmap

import (
	"errors"
	"fmt"

	"github.com/softrnic/softrnic/iwarp/ddp"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// Layer is the layer that found a fault (RFC 5040 section 4.8).
type Layer uint8

const (
	LayerRDMAP Layer = 0
	LayerDDP   Layer = 1
	LayerLLP   Layer = 2
)

// Error types of LayerRDMAP.
const (
	TypeLocal      uint8 = 0 // local catastrophic error
	TypeProtection uint8 = 1 // remote protection error
	TypeOperation  uint8 = 2 // remote operation error
)

// Error codes of LayerRDMAP (RFC 5040 section 4.8).
const (
	CodeSTag         uint8 = 0x00 // invalid STag
	CodeBounds       uint8 = 0x01 // base or bounds violation
	CodeAccess       uint8 = 0x02 // access rights violation
	CodeAssociation  uint8 = 0x03 // STag not associated with the stream
	CodeWrap         uint8 = 0x04 // TO wrap
	CodeVersion      uint8 = 0x05 // invalid RDMAP version
	CodeOpcode       uint8 = 0x06 // unexpected opcode
	CodeStream       uint8 = 0x07 // catastrophic error localized to the stream
	CodeGlobal       uint8 = 0x08 // catastrophic error, global
	CodeInvalidation uint8 = 0x09 // STag cannot be invalidated
	CodeUnspecified  uint8 = 0xff
)

// TerminateError says that a fault ended the stream, with the codes of the
// Terminate message that was sent or received (RFC 5040 section 4.8).
type TerminateError struct {
	Layer  Layer
	Type   uint8 // error type within Layer
	Code   uint8 // error code within Type
	Remote bool  // the peer sent it; otherwise we found the fault
	Term   Term  // as received or as sent, with memory of its own
	Err    error // what we found; nil where Remote
}

func (e *TerminateError) Error() string {
	who := "stream terminated"
	if e.Remote {
		who = "stream terminated by the peer"
	}
	s := fmt.Sprintf("rdmap: %s: %s (layer %d, type %d, code %#02x; RFC 5040 section 4.8)", who, Describe(e.Layer, e.Type, e.Code), e.Layer, e.Type, e.Code)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *TerminateError) Unwrap() error { return e.Err }

type codes struct {
	layer     Layer
	typ, code uint8
}

var descriptions = map[codes]string{
	{LayerRDMAP, TypeLocal, 0}:                     "local catastrophic error",
	{LayerRDMAP, TypeProtection, CodeSTag}:         "invalid STag",
	{LayerRDMAP, TypeProtection, CodeBounds}:       "base or bounds violation",
	{LayerRDMAP, TypeProtection, CodeAccess}:       "access rights violation",
	{LayerRDMAP, TypeProtection, CodeAssociation}:  "STag not associated with the stream",
	{LayerRDMAP, TypeProtection, CodeWrap}:         "TO wrap",
	{LayerRDMAP, TypeProtection, CodeInvalidation}: "STag cannot be invalidated",
	{LayerRDMAP, TypeProtection, CodeUnspecified}:  "remote protection error",
	{LayerRDMAP, TypeOperation, CodeVersion}:       "invalid RDMAP version",
	{LayerRDMAP, TypeOperation, CodeOpcode}:        "unexpected opcode",
	{LayerRDMAP, TypeOperation, CodeStream}:        "catastrophic error of the stream",
	{LayerRDMAP, TypeOperation, CodeGlobal}:        "catastrophic error of the RNIC",
	{LayerRDMAP, TypeOperation, CodeInvalidation}:  "STag cannot be invalidated",
	{LayerRDMAP, TypeOperation, CodeUnspecified}:   "remote operation error",
	{LayerDDP, 0, 0}:                               "DDP: local catastrophic error",
	{LayerDDP, 1, 0}:                               "DDP: invalid STag",
	{LayerDDP, 1, 1}:                               "DDP: base or bounds violation",
	{LayerDDP, 1, 2}:                               "DDP: STag not associated with the stream",
	{LayerDDP, 1, 3}:                               "DDP: TO wrap",
	{LayerDDP, 1, 4}:                               "DDP: invalid version of a tagged segment",
	{LayerDDP, 2, 1}:                               "DDP: invalid QN",
	{LayerDDP, 2, 2}:                               "DDP: no buffer available for the MSN",
	{LayerDDP, 2, 3}:                               "DDP: MSN out of range",
	{LayerDDP, 2, 4}:                               "DDP: invalid MO",
	{LayerDDP, 2, 5}:                               "DDP: message too long for the buffer",
	{LayerDDP, 2, 6}:                               "DDP: invalid version of an untagged segment",
	{LayerLLP, 0, 1}:                               "MPA: TCP connection lost",
	{LayerLLP, 0, 2}:                               "MPA: CRC error",
	{LayerLLP, 0, 3}:                               "MPA: marker and ULPDU_Length do not match",
	{LayerLLP, 0, 4}:                               "MPA: invalid startup frame",
	{LayerLLP, 0, 5}:                               "MPA: local catastrophic error",
	{LayerLLP, 0, 6}:                               "MPA: insufficient IRD resources",
	{LayerLLP, 0, 7}:                               "MPA: no matching RTR option",
}

// Describe returns the meaning of a Terminate's codes in words.
func Describe(l Layer, typ, code uint8) string {
	if s, ok := descriptions[codes{l, typ, code}]; ok {
		return s
	}
	return "unknown error"
}

// opError is a fault that RDMAP itself finds.
type opError struct {
	typ, code uint8
	err       error
}

func (e *opError) Error() string { return "rdmap: " + e.err.Error() }
func (e *opError) Unwrap() error { return e.err }

func operationError(code uint8, format string, args ...any) error {
	return &opError{TypeOperation, code, fmt.Errorf(format, args...)}
}

// protection wraps the verdict on what a Read Request or an invalidation names.
func protection(err error) error {
	return &opError{TypeProtection, protectionCode(err), err}
}

func protectionCode(err error) uint8 {
	switch {
	case errors.Is(err, mem.ErrSTag):
		return CodeSTag
	case errors.Is(err, mem.ErrBounds):
		return CodeBounds
	case errors.Is(err, mem.ErrAccess):
		return CodeAccess
	case errors.Is(err, mem.ErrPD):
		return CodeAssociation
	case errors.Is(err, mem.ErrWrap):
		return CodeWrap
	}
	return CodeUnspecified
}

// localError is a fault in memory of our own side.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// wireCodes is the one table from a fault to the codes of its Terminate. headers
// says whether the offending segment's header goes with it (RFC 5040 section
// 4.8, figure 10).
func wireCodes(err error) (c codes, headers bool) {
	var op *opError
	var de *ddp.Error
	var le *ddp.LLPError
	var lo *localError
	var be *BufferError
	switch {
	case errors.As(err, &be):
		return codes{LayerDDP, uint8(ddp.TypeLocal), 0}, false
	case errors.As(err, &op):
		return codes{LayerRDMAP, op.typ, op.code}, true
	case errors.As(err, &de):
		return codes{LayerDDP, uint8(de.Type), de.Code}, de.Type != ddp.TypeLocal
	case errors.As(err, &le):
		// The header of an FPDU with a bad CRC cannot be trusted.
		return codes{LayerLLP, 0, uint8(le.Code)}, false
	case errors.As(err, &lo):
		return codes{LayerRDMAP, TypeLocal, 0}, false
	case errors.Is(err, mem.ErrSTag):
		return codes{LayerDDP, uint8(ddp.TypeTagged), ddp.CodeSTag}, true
	case errors.Is(err, mem.ErrBounds):
		return codes{LayerDDP, uint8(ddp.TypeTagged), ddp.CodeBounds}, true
	case errors.Is(err, mem.ErrPD):
		return codes{LayerDDP, uint8(ddp.TypeTagged), ddp.CodeAssociation}, true
	case errors.Is(err, mem.ErrWrap):
		return codes{LayerDDP, uint8(ddp.TypeTagged), ddp.CodeWrap}, true
	case errors.Is(err, mem.ErrAccess):
		// DDP has no code for it; RDMAP does (RFC 5040 section 7.2). Linux siw
		// reports an invalid STag instead.
		return codes{LayerRDMAP, TypeProtection, CodeAccess}, true
	}
	// A segment shorter than its header has no code in RFC 5041; nor has what else
	// we could not foresee.
	return codes{LayerDDP, uint8(ddp.TypeLocal), 0}, false
}

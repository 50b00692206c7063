package verbs

import (
	"errors"
	"fmt"

	"github.com/softrnic/softrnic/iwarp/rdmap"
)

// flush completes every work request that is left, each once and in order, and lets
// what is posted from now on complete at once. Further calls do nothing.
func (q *QP) flush() {
	err := q.Err()
	rest := ErrFlushed
	if err != nil {
		rest = fmt.Errorf("%w: %w", ErrFlushed, err)
	}
	first, firstErr := WRFlush, rest
	// The message that was being received may be what the fault is about.
	var te *TerminateError
	var local *rdmap.BufferError
	if errors.As(err, &local) {
		first, firstErr = LocalProtection, err
	} else if errors.As(err, &te) && !te.Remote && te.Layer == rdmap.LayerDDP && te.Type == 2 && te.Code == 5 {
		if _, send := te.Term.Subject(); send { // a Read Request can be too long too
			first, firstErr = LocalLength, err
		}
	}
	q.sq.flush(rest)
	q.rq.flush(first, firstErr, rest)
}

// blame gives the work request that a Terminate is about its status, where one can
// be told: the others are flushed.
func (q *QP) blame(te *TerminateError) {
	about, ok := te.Term.Subject()
	switch {
	case !ok:
	case te.Remote && about.Op != rdmap.ReadResponse:
		q.sq.blame(about, remoteStatus(te), te)
	case !te.Remote && about.Op == rdmap.ReadResponse:
		q.sq.blame(about, BadResponse, te)
	}
}

// remoteStatus is the one table from the codes of a peer's Terminate to the status
// of the work request that it is about.
func remoteStatus(te *TerminateError) Status {
	switch te.Layer {
	case rdmap.LayerRDMAP:
		switch {
		case te.Type == rdmap.TypeProtection:
			return RemoteAccess
		case te.Type == rdmap.TypeOperation && te.Code != rdmap.CodeStream && te.Code != rdmap.CodeGlobal:
			return RemoteInvalidRequest
		}
	case rdmap.LayerDDP:
		switch {
		case te.Type == 1 && te.Code <= 3: // STag, bounds, association, TO wrap
			return RemoteAccess
		case te.Type == 2 && te.Code == 2: // no receive was posted
			return RemoteOperation
		case te.Type != 0:
			return RemoteInvalidRequest
		}
	}
	return RemoteOperation
}

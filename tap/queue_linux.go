package tap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIOV is the most pieces that one writev takes (UIO_MAXIOV).
const maxIOV = 1024

// queue is a Queue on a descriptor. It waits in Go's network poller, so that no
// thread or P is held meanwhile.
type queue struct {
	f   *os.File
	rc  syscall.RawConn
	hdr int // octets of the virtio-net header on the descriptor, 0 for none

	woken  atomic.Bool
	closed atomic.Bool

	// For ReadBatch and Wait, one goroutine at a time. The functions are made once,
	// since a closure for each call would be an allocation.
	rd struct {
		hdr    [VNetHdrLen]byte
		iov    []unix.Iovec
		frames []Frame
		n      int
		err    error
		do     func(fd uintptr)
		ready  func(fd uintptr) bool
	}
	// For WriteBatch.
	mu sync.Mutex
	wr struct {
		hdr    [VNetHdrLen]byte
		iov    []unix.Iovec
		joined []byte
		frames []Frame
		n      int
		err    error
		do     func(fd uintptr)
	}
}

func newQueue(f *os.File, hdr int) (*queue, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	// Only what the poller takes has deadlines, which Wait needs.
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("descriptor cannot be polled: %w", err)
	}
	q := &queue{f: f, rc: rc, hdr: hdr}
	q.rd.do, q.rd.ready, q.wr.do = q.read, q.ready, q.write
	return q, nil
}

func (q *queue) close() error {
	q.closed.Store(true)
	return q.f.Close()
}

// ReadBatch implements Queue.
func (q *queue) ReadBatch(frames []Frame) (int, error) {
	r := &q.rd
	r.frames, r.n, r.err = frames, 0, nil
	err := q.rc.Control(r.do)
	r.frames = nil
	if err != nil {
		return 0, ErrClosed
	}
	return r.n, r.err
}

func (q *queue) read(fd uintptr) {
	r := &q.rd
	for r.n < len(r.frames) {
		f := &r.frames[r.n]
		r.iov = r.iov[:0]
		if q.hdr > 0 {
			r.iov = appendIOV(r.iov, r.hdr[:])
		}
		for _, b := range f.Bufs {
			r.iov = appendIOV(r.iov, b)
		}
		// The descriptor does not block, so the scheduler need not know.
		n, _, e := unix.RawSyscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(r.iov))), uintptr(len(r.iov)))
		switch {
		case e == unix.EAGAIN:
			return
		case e == unix.EINTR:
			continue
		case e != 0:
			r.err = fmt.Errorf("tap: read %s: %w", q.f.Name(), e)
			return
		case int(n) < q.hdr:
			r.err = fmt.Errorf("tap: read %s: %d octets, less than a header", q.f.Name(), n)
			return
		}
		if f.N = int(n) - q.hdr; q.hdr > 0 {
			f.Hdr.get(r.hdr[:])
		} else {
			f.Hdr = VNetHdr{}
		}
		r.n++
	}
}

// WriteBatch implements Queue.
func (q *queue) WriteBatch(frames []Frame) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &q.wr
	w.frames, w.n, w.err = frames, 0, nil
	err := q.rc.Control(w.do)
	w.frames = nil
	if err != nil {
		return 0, ErrClosed
	}
	return w.n, w.err
}

func (q *queue) write(fd uintptr) {
	w := &q.wr
	for w.n < len(w.frames) {
		f := &w.frames[w.n]
		w.iov = w.iov[:0]
		if q.hdr > 0 {
			f.Hdr.put(w.hdr[:])
			w.iov = appendIOV(w.iov, w.hdr[:])
		}
		if len(f.Bufs)+len(w.iov) > maxIOV {
			w.iov = appendIOV(w.iov, q.join(f.Bufs))
		} else {
			for _, b := range f.Bufs {
				w.iov = appendIOV(w.iov, b)
			}
		}
		_, _, e := unix.RawSyscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(w.iov))), uintptr(len(w.iov)))
		switch e {
		case 0, unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM: // no room: dropped, as on a wire
		case unix.EINTR:
			continue
		case unix.EIO:
			w.err = &Error{Op: "write", Name: q.f.Name(), Err: ErrDown, Cause: e, Remedy: "ip link set " + q.f.Name() + " up"}
			return
		default:
			w.err = fmt.Errorf("tap: write %s: frame of %d pieces: %w", q.f.Name(), len(f.Bufs), e)
			return
		}
		w.n++
	}
}

// join makes one piece of more than the kernel takes.
func (q *queue) join(bufs [][]byte) []byte {
	b := q.wr.joined[:0]
	for _, p := range bufs {
		b = append(b, p...)
	}
	q.wr.joined = b
	return b
}

func appendIOV(iov []unix.Iovec, b []byte) []unix.Iovec {
	if len(b) == 0 {
		return iov
	}
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return append(iov, v)
}

// Wake implements Queue.
func (q *queue) Wake() {
	// First the flag, then the deadline: Wait sets its own deadline before it looks
	// at the flag, so one of the two stops it.
	q.woken.Store(true)
	_ = q.f.SetReadDeadline(time.Unix(1, 0))
}

// Wait implements Queue.
func (q *queue) Wait(timeout time.Duration) error {
	var deadline time.Time
	if timeout >= 0 {
		deadline = time.Now().Add(timeout)
	}
	if err := q.f.SetReadDeadline(deadline); err != nil {
		return ErrClosed
	}
	q.rd.err = nil
	err := q.rc.Read(q.rd.ready)
	q.woken.Store(false)
	switch {
	case q.closed.Load():
		return ErrClosed
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return q.rd.err
	}
	return fmt.Errorf("tap: wait for %s: %w", q.f.Name(), err)
}

// ready says whether Wait is over.
func (q *queue) ready(fd uintptr) bool {
	if q.woken.Load() {
		return true
	}
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p[:], 0)
	if err == nil && n > 0 && p[0].Revents&unix.POLLIN == 0 {
		q.rd.err = fmt.Errorf("tap: %s: the interface is gone", q.f.Name())
	}
	return err == nil && n > 0
}

func (h *VNetHdr) get(b []byte) {
	h.Flags, h.GSOType = b[0], b[1]
	h.HdrLen, h.GSOSize = binary.NativeEndian.Uint16(b[2:]), binary.NativeEndian.Uint16(b[4:])
	h.CsumStart, h.CsumOffset = binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint16(b[8:])
}

func (h *VNetHdr) put(b []byte) {
	b[0], b[1] = h.Flags, h.GSOType
	binary.NativeEndian.PutUint16(b[2:], h.HdrLen)
	binary.NativeEndian.PutUint16(b[4:], h.GSOSize)
	binary.NativeEndian.PutUint16(b[6:], h.CsumStart)
	binary.NativeEndian.PutUint16(b[8:], h.CsumOffset)
}

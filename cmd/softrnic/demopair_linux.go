package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"github.com/softrnic/softrnic/tap"
	"github.com/softrnic/softrnic/tap/taptest"
	"golang.org/x/sys/unix"
)

// Where there may be no TAP, the two RNICs are processes all the same: each has one
// end of a pipe in memory for its Ethernet, and what comes out at the other end goes
// to the other process through a pair of sockets.

// demoOffTAP runs the demo without TAPs.
func demoOffTAP(ctx context.Context, o demoOptions, w, errw io.Writer) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return demoMemory(ctx, o, w, errw)
	}
	var ends [2]*os.File
	for i, fd := range fds {
		ends[i] = os.NewFile(uintptr(fd), "wire")
		defer ends[i].Close()
	}
	o.memory = true
	runtime.LockOSThread() // Pdeathsig counts threads
	defer runtime.UnlockOSThread()
	if _, ok := errw.(*os.File); !ok { // which both children write to on their own
		errw = &sharedWriter{w: errw}
	}
	peers, reap, err := demoChildren(o, errw, func(i int, cmd *exec.Cmd) {
		cmd.SysProcAttr.Cloneflags = 0
		cmd.ExtraFiles = []*os.File{ends[i]} // descriptor 3 there
	}, nil)
	defer reap()
	if err != nil {
		return err
	}
	for _, f := range ends {
		f.Close() // the children have them: when one ends, the other notices
	}
	stop := context.AfterFunc(ctx, func() { peers[0].close(); peers[1].close() })
	defer stop()
	return demoRun(ctx, peers, "memory", 2, o, w, errw)
}

// sharedWriter lets several goroutines write.
type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sharedWriter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

// demoSocket is the Ethernet device of a process that got a socket.
func demoSocket(mtu int) (tap.Device, error) {
	f := os.NewFile(3, "wire")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	near, far := taptest.Pipe(taptest.Options{MTU: mtu})
	go demoSendFrames(conn, far)
	go demoReceiveFrames(conn, far)
	return near, nil
}

const (
	demoFrameHdr = 4 + tap.VNetHdrLen // octets: length, virtio-net header
	demoBatch    = 32
)

// demoSendFrames writes what far receives to the socket, until one of them ends.
func demoSendFrames(conn net.Conn, far tap.Device) {
	defer conn.Close()
	q := far.Queues()[0]
	w := bufio.NewWriterSize(conn, 1<<18)
	frames, bufs := make([]tap.Frame, demoBatch), make([][]byte, demoBatch)
	for i := range bufs {
		bufs[i] = make([]byte, tap.MaxFrame)
		frames[i].Bufs = bufs[i : i+1]
	}
	for {
		n, err := q.ReadBatch(frames)
		if err == nil && n == 0 {
			err = q.Wait(-1)
		}
		if err != nil {
			return
		}
		for i := range frames[:n] {
			f := &frames[i]
			var h [demoFrameHdr]byte
			binary.LittleEndian.PutUint32(h[:], uint32(f.N))
			h[4], h[5] = f.Hdr.Flags, f.Hdr.GSOType
			for k, v := range []uint16{f.Hdr.HdrLen, f.Hdr.GSOSize, f.Hdr.CsumStart, f.Hdr.CsumOffset} {
				binary.LittleEndian.PutUint16(h[6+2*k:], v)
			}
			_, _ = w.Write(h[:]) // Flush says it
			_, _ = w.Write(bufs[i][:f.N])
		}
		if err := w.Flush(); err != nil {
			return
		}
	}
}

// demoReceiveFrames hands what the socket brings to far, until one of them ends.
func demoReceiveFrames(conn net.Conn, far tap.Device) {
	defer far.Close()
	r := bufio.NewReaderSize(conn, 1<<18)
	buf := make([]byte, tap.MaxFrame)
	for {
		var h [demoFrameHdr]byte
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return
		}
		n := binary.LittleEndian.Uint32(h[:])
		if n > tap.MaxFrame {
			return
		}
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return
		}
		le := binary.LittleEndian
		hdr := tap.VNetHdr{Flags: h[4], GSOType: h[5], HdrLen: le.Uint16(h[6:]), GSOSize: le.Uint16(h[8:]), CsumStart: le.Uint16(h[10:]), CsumOffset: le.Uint16(h[12:])}
		if _, err := far.Queues()[0].WriteBatch([]tap.Frame{{Hdr: hdr, Bufs: [][]byte{buf[:n]}}}); err != nil {
			return
		}
	}
}

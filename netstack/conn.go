package netstack

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/iwarp/llp"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// minLeft is the least room in a segment that Room reports, in octets. Below it a new
// segment is started instead, as an FPDU in it would be little but header.
const minLeft = 64

// endpoint is the part of *tcp.Endpoint that Conn uses beyond tcpip.Endpoint.
type endpoint interface {
	tcpip.Endpoint
	WakeupWriters()
}

// conn is a TCP endpoint as an llp.Conn.
//
// A word on locks: gVisor calls NotifyEvent with the endpoint's lock held, and
// every call of ours that needs that lock would wait for itself. So NotifyEvent
// touches only what is atomic, and calls only the function that Notify was given,
// which llp forbids to call back. Batch.Read runs under the same lock.
type conn struct {
	stack         *Stack
	ep            endpoint
	wq            *waiter.Queue
	entry         waiter.Entry
	local, remote netip.AddrPort
	key           flowKey
	flow          *flow // nil for a connection to ourselves, which has no segments on the wire
	buf           int   // octets of the send buffer
	emss0         int   // EMSS as derived from the MTU, until it is learnt

	notify atomic.Pointer[func(llp.Event)]

	// Send side. written counts the octets queued; credit is the count up to which
	// there surely is space. Both change with the endpoint's lock held.
	written atomic.Uint64
	credit  atomic.Uint64
	probing atomic.Bool // WakeupWriters is at work: its event is an answer, not an edge

	// Owned by the goroutine that sends.
	group   uint64 // start of the cells that TCP may merge into one super-packet
	planned bool   // plan holds for the next Send
	plan    plan
	out     payloader

	// Owned by the goroutine that receives.
	lent peeker
	drop discarder

	mu     sync.Mutex
	err    error // why the connection is over, once known
	shut   bool  // CloseWrite was called
	closed bool  // Close or Abort was called
}

// plan is what the next Send should do.
type plan struct {
	emss, left int
	most       int  // MaxBatch
	restart    bool // a new grid starts with it
}

var _ llp.Conn = (*conn)(nil)

// newConn takes an established endpoint over.
func newConn(s *Stack, ep endpoint, wq *waiter.Queue, local, remote netip.AddrPort) *conn {
	c := &conn{stack: s, ep: ep, wq: wq, local: local, remote: remote, key: keyOf(local, remote)}
	so := ep.SocketOptions()
	so.SetDelayOption(false)
	// Setting them, even to what they are, turns automatic tuning off.
	so.SetSendBufferSize(int64(s.cfg.SendBuffer), true)
	so.SetReceiveBufferSize(int64(s.cfg.ReceiveBuffer), true)
	c.buf = int(so.GetSendBufferSize())
	c.credit.Store(uint64(c.buf))
	ip := header.IPv4MinimumSize
	if remote.Addr().Is6() {
		ip = header.IPv6MinimumSize
	}
	// gVisor keeps room for 40 octets of TCP options in every segment.
	c.emss0 = min((s.cfg.MTU-ip-header.TCPMinimumSize-header.TCPOptionsMaximumSize)&^3, llp.MaxEMSS)
	if !s.owns(remote.Addr()) {
		c.flow = s.link.flows.add(c.key)
	}
	c.entry.Init(c, waiter.ReadableEvents|waiter.WritableEvents|waiter.EventHUp|waiter.EventErr)
	wq.EventRegister(&c.entry)
	return c
}

// setOptions gives an endpoint what it needs before it connects or listens;
// accepted endpoints inherit some of it, and get all of it again.
func (s *Stack) setOptions(ep tcpip.Endpoint) {
	timeout := tcpip.TCPUserTimeoutOption(s.cfg.UserTimeout)
	_ = ep.SetSockOpt(&timeout)
	if s.cfg.KeepAlive > 0 {
		idle := tcpip.KeepaliveIdleOption(s.cfg.KeepAlive)
		interval := tcpip.KeepaliveIntervalOption(max(s.cfg.KeepAlive/4, minKeepAlive))
		_ = ep.SetSockOpt(&idle)
		_ = ep.SetSockOpt(&interval)
		_ = ep.SetSockOptInt(tcpip.KeepaliveCountOption, keepAliveCount)
		ep.SocketOptions().SetKeepAlive(true)
	}
}

// NotifyEvent implements waiter.EventListener.
func (c *conn) NotifyEvent(mask waiter.EventMask) {
	var ev llp.Event
	if mask&waiter.ReadableEvents != 0 {
		ev |= llp.Readable
	}
	if mask&waiter.WritableEvents != 0 {
		ev |= llp.Writable
	}
	if mask&waiter.EventHUp != 0 {
		ev |= llp.Down | llp.Readable | llp.Writable
		c.forget()
	} else if ev&llp.Writable != 0 {
		// Less than half of the buffer is in use, or two thirds where we asked.
		free := c.buf / 2
		probe := c.probing.Load()
		if probe {
			free = c.buf/3 - 1
		}
		if limit := c.written.Load() + uint64(free); limit > c.credit.Load() {
			c.credit.Store(limit)
		}
		if probe {
			ev &^= llp.Writable
		}
	}
	if ev == 0 {
		return
	}
	if f := c.notify.Load(); f != nil {
		(*f)(ev)
	}
}

// forget takes the connection out of the flow table.
func (c *conn) forget() {
	if c.flow != nil {
		c.stack.link.flows.remove(c.key, c.flow)
	}
}

// Notify implements llp.Conn.
func (c *conn) Notify(f func(llp.Event)) {
	if f == nil {
		c.notify.Store(nil)
		return
	}
	c.notify.Store(&f)
	var ev llp.Event
	if c.ep.Readiness(waiter.ReadableEvents) != 0 {
		ev |= llp.Readable
	}
	if c.credit.Load() > c.written.Load() {
		ev |= llp.Writable
	}
	switch tcp.EndpointState(c.ep.State()) {
	case tcp.StateError, tcp.StateClose, tcp.StateTimeWait:
		ev |= llp.Down
	}
	f(ev)
}

// emss returns the EMSS of now.
func (c *conn) emss() int {
	if c.flow != nil {
		if e := int(c.flow.emss.Load()); e > 0 {
			return e
		}
	}
	return c.emss0
}

// space returns the octets that Send is certain to take. Where they seem fewer than
// want, gVisor is asked: it has no word for free space, but tells, as its event of
// writability, whether at most two thirds of the buffer are in use. If they are
// not, more than half is in use and an event will follow.
func (c *conn) space(want int) int {
	free := int(int64(c.credit.Load() - c.written.Load()))
	if free >= want {
		return free
	}
	c.probing.Store(true)
	c.ep.WakeupWriters()
	c.probing.Store(false)
	return int(int64(c.credit.Load() - c.written.Load()))
}

// batchOf returns the octets of the largest super-packet of whole segments.
func batchOf(emss int) int { return max(1, maxPayload/emss) * emss }

// Room implements llp.Conn.
func (c *conn) Room() llp.Room {
	if !c.planned || !c.plan.restart && !c.waiting() {
		// Nothing planned, or what TCP held back has left since, which ended the
		// segment.
		c.prepare()
	}
	p := &c.plan
	return llp.Room{EMSS: p.emss, Left: p.left, Space: c.space(batchOf(p.emss)), MaxBatch: p.most}
}

// prepare plans the next Send. Where TCP still holds octets back, the next join
// them: they continue the grid, and MaxBatch is such that with them they make one
// whole super-packet, for then gVisor merges all. Where it holds none, or the
// segment is nearly full, a new grid starts.
func (c *conn) prepare() {
	c.planned = true
	p := &c.plan
	p.emss = c.emss()
	p.left, p.most, p.restart = p.emss, batchOf(p.emss), true
	if !c.waiting() {
		return
	}
	w := c.written.Load()
	left, _, _ := c.flow.cell(w, p.emss)
	if left < minLeft {
		return
	}
	p.left, p.restart = left, false
	// Whole cells, that of w included, which a caller takes out again: it is Left.
	if cells := int((w - c.group) / uint64(p.emss) * uint64(p.emss)); cells < p.most {
		p.most -= cells
	}
}

// waiting reports whether TCP holds octets that have not left.
func (c *conn) waiting() bool {
	return c.flow != nil && c.flow.sent() < c.written.Load()
}

// Send implements llp.Conn.
func (c *conn) Send(b llp.Batch) error {
	n := b.Len()
	if n == 0 {
		return nil
	}
	if n > buffer.MaxChunkSize {
		return c.fail("send", fmt.Errorf("batch of %d octets: larger than %d, what one super-packet holds", n, buffer.MaxChunkSize))
	}
	if err := c.over(true); err != nil {
		return err
	}
	if c.space(n) < n {
		if err := c.down(); err != nil {
			return err
		}
		return llp.ErrWouldBlock
	}
	if !c.planned {
		c.prepare() // nobody asked Room: take b as a start
	}
	c.planned = false // the batch was made by this plan, even where it is stale by now
	w := c.written.Load()
	if c.plan.restart {
		c.group = w
		if c.flow != nil {
			c.flow.restart(w, w-min(w, uint64(c.buf)))
		}
	} else if w-c.group >= uint64(batchOf(c.plan.emss)) {
		c.group = w - uint64(c.plan.emss-c.plan.left)
	}
	c.out = payloader{b: b, written: &c.written}
	_, terr := c.ep.Write(&c.out, tcpip.WriteOptions{Atomic: true})
	err := c.out.err
	c.out.b = nil
	switch terr.(type) {
	case nil:
		return nil
	case *tcpip.ErrBadBuffer:
		if errors.Is(err, llp.ErrNoRoom) {
			return llp.ErrWouldBlock
		}
		if err != nil {
			return err
		}
	case *tcpip.ErrWouldBlock:
		return llp.ErrWouldBlock
	}
	return c.end("send", terr)
}

// payloader lends a batch the chunks of TCP segments. gVisor's rules: Len first,
// then Read(nil), then Read with as much of a chunk as Len and the free space allow;
// io.EOF would make it call for ever, any other error gives the whole Write up.
type payloader struct {
	b       llp.Batch
	written *atomic.Uint64
	err     error
}

// Len implements tcpip.Payloader.
func (p *payloader) Len() int { return p.b.Len() }

// Read implements io.Reader. It runs with the endpoint locked.
func (p *payloader) Read(q []byte) (int, error) {
	if len(q) == 0 {
		return 0, nil
	}
	n := p.b.Len()
	if len(q) < n {
		p.err = llp.ErrNoRoom
		return 0, p.err
	}
	got, err := p.b.Read(q[:n:n])
	if err == nil && got != n {
		err = fmt.Errorf("netstack: batch wrote %d octets of the %d it had announced", got, n)
	}
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		p.err = err
		return 0, err
	}
	p.written.Add(uint64(n))
	return n, nil
}

// Receive implements llp.Conn.
func (c *conn) Receive(need, budget int) ([][]byte, error) {
	need = max(need, 1)
	c.lent.reset()
	if err := c.over(false); err != nil {
		return nil, err
	}
	// What arrived before a reset is still there to be read.
	// The count costs the same however many segments it is spread over.
	queued, _ := c.ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
	if queued < need {
		state := tcp.EndpointState(c.ep.State())
		switch state {
		case tcp.StateCloseWait, tcp.StateLastAck, tcp.StateClosing, tcp.StateTimeWait, tcp.StateClose:
			// The FIN has come, so the count is final by now.
			queued, _ = c.ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
			switch {
			case queued >= need:
			case queued > 0:
				return nil, io.ErrUnexpectedEOF
			default:
				if err := c.down(); err != nil {
					return nil, err
				}
				return nil, io.EOF
			}
		case tcp.StateError:
			if queued, _ = c.ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption); queued < need {
				return nil, c.down()
			}
		default:
			return nil, llp.ErrWouldBlock
		}
	}
	c.lent.limit = max(need, budget)
	if _, terr := c.ep.Read(&c.lent, tcpip.ReadOptions{Peek: true}); terr != nil {
		c.lent.reset()
		if _, ok := terr.(*tcpip.ErrWouldBlock); ok {
			return nil, llp.ErrWouldBlock
		}
		return nil, c.end("receive", terr)
	}
	return c.lent.slices, nil
}

// errEnough ends a Read that has gone far enough.
var errEnough = errors.New("netstack: enough")

// peeker lists the slices of segments that Read shows.
type peeker struct {
	slices [][]byte
	octets int
	limit  int
}

func (p *peeker) reset() {
	clear(p.slices)
	p.slices, p.octets = p.slices[:0], 0
}

// Write implements io.Writer; it keeps b, which is the queued segment's.
func (p *peeker) Write(b []byte) (int, error) {
	if p.octets >= p.limit {
		return 0, errEnough
	}
	p.slices = append(p.slices, b)
	p.octets += len(b)
	return len(b), nil
}

// discarder takes n octets and no more.
type discarder struct{ n int }

// Write implements io.Writer.
func (d *discarder) Write(b []byte) (int, error) {
	if len(b) > d.n {
		n := d.n
		d.n = 0
		return n, errEnough
	}
	d.n -= len(b)
	return len(b), nil
}

// Consume implements llp.Conn.
func (c *conn) Consume(n int) error {
	if n < 0 || n > c.lent.octets {
		return c.fail("consume", fmt.Errorf("%d octets: the last Receive returned %d", n, c.lent.octets))
	}
	c.lent.reset()
	if n == 0 {
		return nil
	}
	c.drop.n = n
	if _, terr := c.ep.Read(&c.drop, tcpip.ReadOptions{}); terr != nil {
		return c.end("consume", terr)
	}
	return nil
}

// CloseWrite implements llp.Conn.
func (c *conn) CloseWrite() error {
	c.mu.Lock()
	over, closed, shut := c.err, c.closed, c.shut
	c.shut = true
	c.mu.Unlock()
	switch {
	case over != nil:
		return over
	case closed:
		return c.fail("close write", llp.ErrClosed)
	case shut:
		return nil
	}
	if terr := c.ep.Shutdown(tcpip.ShutdownWrite); terr != nil {
		return c.end("close write", terr)
	}
	return nil
}

// Abort implements llp.Conn.
func (c *conn) Abort() {
	c.mu.Lock()
	was := c.closed
	c.closed = true
	if c.err == nil {
		c.err = c.fail("abort", llp.ErrReset)
	}
	c.mu.Unlock()
	if was && !c.connected() {
		return
	}
	c.ep.Abort()
	// Abort leaves the endpoint in an error state, registered with nobody; Close lets
	// go of the rest, once.
	c.ep.Close()
	c.forget()
}

// connected reports whether TCP still has work to do for the connection.
func (c *conn) connected() bool {
	switch tcp.EndpointState(c.ep.State()) {
	case tcp.StateEstablished, tcp.StateFinWait1, tcp.StateFinWait2, tcp.StateCloseWait, tcp.StateLastAck, tcp.StateClosing:
		return true
	}
	return false
}

// Close implements llp.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	was := c.closed
	c.closed = true
	if c.err == nil {
		c.err = c.fail("close", llp.ErrClosed)
	}
	c.mu.Unlock()
	if was {
		return nil
	}
	c.ep.Close()
	switch tcp.EndpointState(c.ep.State()) {
	case tcp.StateError, tcp.StateClose:
		c.forget()
	}
	return nil
}

// LocalAddr implements llp.Conn.
func (c *conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr implements llp.Conn.
func (c *conn) RemoteAddr() netip.AddrPort { return c.remote }

// over returns the error that ended the connection for us, if it is known: for a
// send any, or that CloseWrite was called; for a receive that we closed it.
func (c *conn) over(send bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil && (send || c.closed):
		return c.err
	case send && c.shut:
		return c.fail("send", llp.ErrClosed)
	}
	return nil
}

// down returns why the connection is over, or nil where it is not.
func (c *conn) down() error {
	if tcp.EndpointState(c.ep.State()) != tcp.StateError {
		return nil
	}
	return c.end("receive", c.ep.LastError())
}

// end records and returns the error that ended the connection: the first one stays,
// as gVisor tells it only once.
func (c *conn) end(op string, terr tcpip.Error) error {
	switch terr.(type) {
	case nil, *tcpip.ErrClosedForSend, *tcpip.ErrClosedForReceive, *tcpip.ErrNotConnected, *tcpip.ErrInvalidEndpointState:
		// Not closed by us, or over would have said so: the peer's reset, the cause of
		// which is told elsewhere, or was lost.
		terr = c.ep.LastError()
		switch {
		case terr != nil:
		case c.stack.isClosed():
			return c.keep(op, llp.ErrClosed)
		default:
			terr = &tcpip.ErrConnectionReset{}
		}
	}
	if c.stack.isClosed() {
		return c.keep(op, llp.ErrClosed)
	}
	return c.keep(op, fromTCPIP(terr))
}

// keep makes err the reason why the connection is over, unless there is one.
func (c *conn) keep(op string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = c.fail(op, err)
	}
	return c.err
}

// fail wraps err with the operation and the addresses.
func (c *conn) fail(op string, err error) error {
	return &OpError{Op: op, Local: c.local, Remote: c.remote, Err: err}
}

package main

import (
	"net"
	"net/netip"
)

// kernelServer serves one connection over the kernel's TCP.
func kernelServer(o options, ready func()) error {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(kernelAddr[0].Addr(), port)))
	if err != nil {
		return err
	}
	defer l.Close()
	ready()
	c, err := l.AcceptTCP()
	if err != nil {
		return err
	}
	defer c.Close()
	return serveStream(c, o.size)
}

// kernelClient measures over the kernel's TCP.
func kernelClient(o options, c contestant) (result, error) {
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(kernelAddr[0].Addr(), port)))
	if err != nil {
		return result{}, err
	}
	defer conn.Close()
	if c.ping {
		return echoStream(conn, o.duration)
	}
	return bulkStream(conn, o.size, o.duration)
}

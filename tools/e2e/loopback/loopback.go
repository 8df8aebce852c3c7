// Package loopback gives tests both ends of a TCP connection of this machine's, as connections or as files.
package loopback

import (
	"errors"
	"net"
	"os"
)

// Conns returns both ends. The caller closes them.
func Conns() (dialed, accepted net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	return through(l)
}

// through connects to a listener. Whoever else does is turned away: the port may have been that of another test's node,
// to which others still try to connect.
func through(l net.Listener) (dialed, accepted net.Conn, err error) {
	dialed, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	for {
		accepted, err = l.Accept()
		if err != nil {
			dialed.Close()
			return nil, nil, err
		}
		if accepted.RemoteAddr().String() == dialed.LocalAddr().String() {
			return dialed, accepted, nil
		}
		accepted.Close()
	}
}

// Pair returns both ends as files. The caller closes them.
func Pair() (dialed, accepted *os.File, err error) {
	a, b, err := Conns()
	if err != nil {
		return nil, nil, err
	}
	defer a.Close()
	defer b.Close()
	dialed, errA := a.(*net.TCPConn).File()
	accepted, errB := b.(*net.TCPConn).File()
	if err := errors.Join(errA, errB); err != nil {
		dialed.Close() // nil is taken for none
		accepted.Close()
		return nil, nil, err
	}
	return dialed, accepted, nil
}

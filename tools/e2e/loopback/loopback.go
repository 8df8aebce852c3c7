// Package loopback gives tests both ends of a TCP connection of this machine's, as files.
package loopback

import (
	"errors"
	"net"
	"os"
)

// Pair returns both ends. The caller closes them.
func Pair() (dialed, accepted *os.File, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	defer a.Close()
	b, err := l.Accept()
	if err != nil {
		return nil, nil, err
	}
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

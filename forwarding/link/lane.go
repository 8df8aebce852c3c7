package link

import (
	"crypto/tls"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// laneAhead is how much a lane under TLS takes from the kernel at once.
const laneAhead = 256 << 10

// Lane carries chunks of bulk operations, in plain blocking system calls. Send
// may be called by several goroutines; Header, Read and Discard belong to one.
type Lane struct {
	raw *rawConn
	tls *tls.Conn // nil: in the clear

	mu     sync.Mutex // sending; leaf
	header [clwire.LaneHeaderBytes]byte
	rx     [clwire.LaneHeaderBytes]byte
}

// NewLane takes a connection over, after the handshake if config is not nil, as NewStream does.
func NewLane(role Role, socket *os.File, config *tls.Config) (*Lane, error) {
	raw, err := newRawConn(socket)
	if err != nil {
		return nil, err
	}
	t, err := raw.handshake(role, config)
	if err != nil {
		raw.Close()
		return nil, err
	}
	if t != nil {
		raw.readAhead(laneAhead)
	}
	return &Lane{raw: raw, tls: t}, nil
}

// Send writes one chunk; payload is h.Length bytes, or nothing if h.Skipped. It
// blocks until the kernel has all.
func (l *Lane) Send(h clwire.LaneHeader, payload []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.Put(l.header[:])
	if l.tls == nil {
		return l.sendClear(payload)
	}
	if _, err := l.tls.Write(l.header[:]); err != nil {
		return hangupOr(err)
	}
	if _, err := l.tls.Write(payload); err != nil {
		return hangupOr(err)
	}
	return nil
}

func (l *Lane) sendClear(payload []byte) error {
	parts := [][]byte{l.header[:], payload}
	for len(parts[0])+len(parts[1]) > 0 {
		n, err := unix.SendmsgBuffers(l.raw.fd, parts, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return hangup(err)
		}
		k := min(n, len(parts[0]))
		parts[0], parts[1] = parts[0][k:], parts[1][n-k:]
	}
	return nil
}

// Header waits for the next chunk. The caller then reads or discards its payload.
func (l *Lane) Header() (clwire.LaneHeader, error) {
	if err := l.Read(l.rx[:]); err != nil {
		return clwire.LaneHeader{}, err
	}
	return clwire.ParseLaneHeader(l.rx[:])
}

// Read fills p with payload.
func (l *Lane) Read(p []byte) error {
	if l.tls != nil {
		_, err := io.ReadFull(l.tls, p)
		return hangupOr(err)
	}
	for len(p) > 0 {
		n, _, err := unix.Recvfrom(l.raw.fd, p, unix.MSG_WAITALL)
		switch {
		case err == unix.EINTR, err == unix.EAGAIN:
		case err != nil, n == 0:
			return hangup(err)
		default:
			p = p[n:]
		}
	}
	return nil
}

// Discard reads n bytes of payload and forgets them.
func (l *Lane) Discard(n int) error {
	var buf [16 << 10]byte
	for n > 0 {
		part := buf[:min(n, len(buf))]
		if err := l.Read(part); err != nil {
			return err
		}
		n -= len(part)
	}
	return nil
}

// Shutdown ends blocked calls of both ends. The Lane stays valid until Close.
func (l *Lane) Shutdown() { l.raw.shutdown() }

// Close closes the connection. No other call may be running or follow.
func (l *Lane) Close() error { return l.raw.Close() }

func hangupOr(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return ErrHangup
	}
	return err
}

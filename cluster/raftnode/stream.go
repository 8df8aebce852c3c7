package raftnode

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// trackedLayer closes, with the layer, the connections that were made over it: raft's transport closes only the
// listener, and its goroutines would read on until the peers hang up.
type trackedLayer struct {
	raft.StreamLayer

	mu      sync.Mutex
	closed  bool
	open    map[*trackedConn]struct{}
	serving sync.WaitGroup // accepted connections whose goroutine has not let go of them yet
}

func track(layer raft.StreamLayer) *trackedLayer {
	return &trackedLayer{StreamLayer: layer, open: map[*trackedConn]struct{}{}}
}

// Accept waits for a peer.
func (t *trackedLayer) Accept() (net.Conn, error) {
	c, err := t.StreamLayer.Accept()
	if err != nil {
		return nil, err
	}
	return t.add(c, true)
}

// Dial reaches a peer.
func (t *trackedLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	c, err := t.StreamLayer.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	return t.add(c, false)
}

func (t *trackedLayer) add(c net.Conn, accepted bool) (net.Conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		c.Close()
		return nil, net.ErrClosed
	}
	x := &trackedConn{Conn: c, layer: t, accepted: accepted}
	t.open[x] = struct{}{}
	if accepted {
		t.serving.Add(1)
	}
	return x, nil
}

// Close closes the listener and every connection.
func (t *trackedLayer) Close() error {
	t.mu.Lock()
	t.closed = true
	for c := range t.open {
		c.Conn.Close()
	}
	t.mu.Unlock()
	return t.StreamLayer.Close()
}

// trackedConn leaves its layer's list when its user closes it.
type trackedConn struct {
	net.Conn
	layer    *trackedLayer
	accepted bool
	once     sync.Once
}

// Close closes the connection. Idempotent.
func (c *trackedConn) Close() error {
	c.once.Do(func() {
		c.layer.mu.Lock()
		delete(c.layer.open, c)
		c.layer.mu.Unlock()
		if c.accepted {
			c.layer.serving.Done()
		}
	})
	return c.Conn.Close()
}

package raftnode

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Layer is a raft.StreamLayer whose connections somebody else makes and authenticates: who accepts them gives them to
// it (Give), and dial reaches a node by its identifier, which is its address as far as raft knows. So nodes may change
// where they are reached, and raft's configuration stays. Make it with NewLayer.
type Layer struct {
	id       string
	dial     func(ctx context.Context, node string) (net.Conn, error)
	incoming chan net.Conn
	closed   chan struct{}
	closing  sync.Once
}

// errLayerClosed is what a layer's methods answer after Close.
var errLayerClosed = errors.New("raft's connections are closed")

// NewLayer makes the layer of the node id. dial must give a connection to that node and no other.
func NewLayer(id string, dial func(ctx context.Context, node string) (net.Conn, error)) *Layer {
	return &Layer{id: id, dial: dial, incoming: make(chan net.Conn), closed: make(chan struct{})}
}

// Give hands a connection of a member over. The layer owns it from then on, also where it answers an error.
func (l *Layer) Give(ctx context.Context, conn net.Conn) error {
	select {
	case l.incoming <- conn:
		return nil
	case <-l.closed:
		conn.Close()
		return errLayerClosed
	case <-ctx.Done():
		conn.Close()
		return ctx.Err()
	}
}

// Accept implements raft.StreamLayer.
func (l *Layer) Accept() (net.Conn, error) {
	select {
	case conn := <-l.incoming:
		return conn, nil
	case <-l.closed:
		return nil, errLayerClosed
	}
}

// Dial implements raft.StreamLayer. A node that dials itself, as one does that is alone and wants no election timeout,
// has a pipe.
func (l *Layer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if string(address) == l.id {
		here, there := net.Pipe()
		if err := l.Give(ctx, there); err != nil {
			here.Close()
			return nil, err
		}
		return here, nil
	}
	return l.dial(ctx, string(address))
}

// Close implements raft.StreamLayer.
func (l *Layer) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return nil
}

// Addr implements raft.StreamLayer: the node's identifier.
func (l *Layer) Addr() net.Addr { return nodeAddr(l.id) }

// nodeAddr is a node's identifier as an address.
type nodeAddr string

// Network names the kind of address.
func (nodeAddr) Network() string { return "tendril" }

// String gives the identifier.
func (a nodeAddr) String() string { return string(a) }

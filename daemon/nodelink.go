package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/transfer"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Limits of connections to other nodes.
const (
	nodeDialTime = 3 * time.Second // for one address, with its handshake
	maxNodeAsks  = 256             // requests to one node that wait for their answer
	maxNodeReply = 16 << 20        // bytes of one answer
)

// errNoAnswer says that a node could not be asked, or went before it answered: whether it did what it was asked for is
// then not known.
var errNoAnswer = errors.New("the node does not answer")

// errCertificate says that a node does not believe this one's certificate, errRemoved that none does that was asked:
// this node has been removed from the cluster, or the clocks differ.
var (
	errCertificate = errors.New("it refuses this node's certificate")
	errRemoved     = fmt.Errorf("%w: the cluster refuses this node's certificate: the node was removed, or a clock is "+
		"wrong; to make it a cluster of one: tendril cluster leave --anyway", object.ErrPermission)
)

// payload is what a request is made of; the messages of ipc/wire are.
type payload = ipc.Payload

// kindRaft and kindControl are what a connection to another node is for.
const (
	kindControl = ipc.KindControl
	kindRaft    = ipc.KindRaft
)

// nodeDial reaches an address; tests put another one in its place.
type nodeDial func(ctx context.Context, address string) (net.Conn, error)

// nodeLinks are the connections to the other nodes that requests go over, one a node, made when they are needed.
type nodeLinks struct {
	m       *membership
	dial    nodeDial
	program string // what this node calls itself

	mu      sync.Mutex
	closed  bool
	links   map[fsm.UUID]*nodeLink
	running sync.WaitGroup // their readers
}

// dialTCP is the nodeDial of a daemon.
func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control: func(_, _ string, raw syscall.RawConn) error {
			var set error
			err := raw.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
					int(peerUserTimeout/time.Millisecond))
			})
			return errors.Join(err, set)
		},
	}
	return dialer.DialContext(ctx, "tcp", address)
}

// connect reaches a node at one of its addresses, and makes sure that it is the node. The caller closes the first.
func (l *nodeLinks) connect(ctx context.Context, node fsm.UUID, kind uint8) (*tls.Conn, net.Conn, error) {
	addresses := l.m.addresses(node)
	if len(addresses) == 0 {
		return nil, nil, fmt.Errorf("%w: no address of node %s is known", errNoAnswer, node)
	}
	protocol := pki.Protocol
	switch kind {
	case kindRaft:
		protocol = pki.ProtocolRaft
	case ipc.KindTransfer:
		protocol = transfer.Protocol
	}
	config := pki.NodeConfig(l.m.keyring.Certificate, l.m.verifier(), node.String(), protocol)
	var faults []error
	for _, a := range addresses {
		secure, raw, err := l.handshake(ctx, a, kind, config)
		if err == nil {
			return secure, raw, nil
		}
		faults = append(faults, fmt.Errorf("%s: %w", a, pki.Explain(err)))
	}
	return nil, nil, fmt.Errorf("%w: node %s: %w", errNoAnswer, node, errors.Join(faults...))
}

func (l *nodeLinks) handshake(ctx context.Context, address string, kind uint8, config *tls.Config) (*tls.Conn, net.Conn,
	error) {
	ctx, cancel := context.WithTimeout(ctx, nodeDialTime+l.m.live.patience())
	defer cancel()
	raw, err := l.dial(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	secure, err := shakeHands(ctx, raw, kind, config)
	if err != nil {
		raw.Close()
		return nil, nil, err
	}
	return secure, raw, nil
}

// shakeHands says what a connection is for, and to whom.
func shakeHands(ctx context.Context, raw net.Conn, kind uint8, config *tls.Config) (*tls.Conn, error) {
	until, _ := ctx.Deadline() // zero: none
	if err := raw.SetDeadline(until); err != nil {
		return nil, err
	}
	if _, err := raw.Write(ipc.NewPreface(kind, [ipc.TicketBytes]byte{}).Append(nil)); err != nil {
		return nil, err
	}
	secure := tls.Client(raw, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secure, raw.SetDeadline(time.Time{})
}

// nodeLink is one of them.
type nodeLink struct {
	stream *ipc.Stream
	node   fsm.UUID
	leaf   *x509.Certificate // the node's

	sending sync.Mutex // one frame at a time

	mu      sync.Mutex // guards the rest
	next    uint64
	waiting map[uint64]chan nodeAnswer
	ended   error
}

// nodeAnswer is a reply, or why there is none.
type nodeAnswer struct {
	payload []byte
	err     error
}

// ask sends a request to a node and waits for its answer. Errors: what the node answers; errNoAnswer; ctx's.
func (l *nodeLinks) ask(ctx context.Context, node fsm.UUID, kind wire.Type, p payload) ([]byte, error) {
	link, err := l.to(ctx, node)
	if err != nil {
		return nil, err
	}
	answer, id, err := link.send(kind, p)
	if err != nil {
		return nil, err
	}
	select {
	case a := <-answer:
		return a.payload, a.err
	case <-ctx.Done():
		link.forget(id)
		return nil, fmt.Errorf("%w: node %s did not answer in time: %w", errNoAnswer, node, ctx.Err())
	}
}

// to gives the connection to a node, and makes it where there is none.
func (l *nodeLinks) to(ctx context.Context, node fsm.UUID) (*nodeLink, error) {
	l.mu.Lock()
	link := l.links[node]
	l.mu.Unlock()
	if link != nil {
		return link, nil
	}
	secure, raw, err := l.connect(ctx, node, kindControl)
	if err != nil {
		return nil, err
	}
	link = &nodeLink{stream: ipc.NewStream(secure, raw), node: node,
		leaf: secure.ConnectionState().PeerCertificates[0], waiting: map[uint64]chan nodeAnswer{}}
	if _, _, err := link.send(wire.Hello, &wire.HelloRequest{Magic: wire.Magic, Lowest: wire.LowestVersion,
		Highest: wire.Version, Program: l.program[:min(len(l.program), 255)]}); err != nil {
		link.stream.Close()
		return nil, err
	}
	entered, err := l.enter(link)
	if err == nil && l.m.void(entered.leaf) { // from here on endIf finds it
		entered.stream.Shutdown()
		return nil, fmt.Errorf("%w: node %s: %w", errNoAnswer, node, errVoid)
	}
	return entered, err
}

// enter has a connection serve all who ask its node, unless another one does meanwhile.
func (l *nodeLinks) enter(link *nodeLink) (*nodeLink, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.links[link.node]; other != nil || l.closed {
		link.stream.Close()
		if other == nil {
			return nil, fmt.Errorf("%w: this node is leaving its cluster, or ends", object.ErrBusy)
		}
		return other, nil
	}
	l.links[link.node] = link
	l.running.Go(func() { l.read(link) })
	return link, nil
}

// read takes answers until the connection ends.
func (l *nodeLinks) read(link *nodeLink) {
	var parts []byte // of an answer in several frames
	for {
		f, err := link.stream.Receive()
		if err != nil {
			link.end(err)
			break
		}
		if f.Flags&ipc.FlagMore != 0 || len(parts) > 0 {
			if parts = append(parts, f.Payload...); len(parts) > maxNodeReply {
				link.end(fmt.Errorf("%w: an answer of more than %d bytes", object.ErrProtocol, maxNodeReply))
				break
			}
			if f.Flags&ipc.FlagMore != 0 {
				continue
			}
			f.Payload, parts = parts, nil
		}
		link.answered(&f)
	}
	l.mu.Lock()
	if l.links[link.node] == link {
		delete(l.links, link.node)
	}
	l.mu.Unlock()
	link.stream.Close()
}

// drop ends the connection to a node that is silent: who waits for its answer is told so.
func (l *nodeLinks) drop(node fsm.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if link := l.links[node]; link != nil {
		delete(l.links, node)
		link.stream.Shutdown()
	}
}

// endIf ends the connections to nodes with some certificates: the next one is made when it is needed.
func (l *nodeLinks) endIf(which func(*x509.Certificate) bool) {
	l.mu.Lock()
	list := slices.Collect(maps.Values(l.links))
	l.mu.Unlock()
	for _, link := range list {
		if which(link.leaf) {
			link.stream.Shutdown()
		}
	}
}

func (l *nodeLinks) close() {
	l.mu.Lock()
	l.closed = true
	for _, link := range l.links {
		link.stream.Shutdown()
	}
	l.mu.Unlock()
	l.running.Wait()
}

// send sends a request; its answer comes over the channel.
func (k *nodeLink) send(kind wire.Type, p payload) (<-chan nodeAnswer, uint64, error) {
	answer := make(chan nodeAnswer, 1)
	k.mu.Lock()
	if k.ended != nil || len(k.waiting) >= maxNodeAsks {
		defer k.mu.Unlock()
		if k.ended != nil {
			return nil, 0, k.ended
		}
		return nil, 0, fmt.Errorf("%w: %d requests to node %s wait for an answer", object.ErrBusy, maxNodeAsks, k.node)
	}
	k.next++
	id := k.next
	k.waiting[id] = answer
	k.mu.Unlock()
	k.sending.Lock()
	defer k.sending.Unlock()
	if err := k.stream.Send(ipc.AppendFrame(nil, kind, 0, id, p), nil); err != nil {
		k.stream.Shutdown() // the reader says so to all
	}
	return answer, id, nil
}

func (k *nodeLink) forget(id uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.waiting, id)
}

func (k *nodeLink) answered(f *ipc.Frame) {
	k.mu.Lock()
	answer := k.waiting[f.Request]
	delete(k.waiting, f.Request)
	k.mu.Unlock()
	if answer == nil { // nobody waits for it any more, or it is no answer
		return
	}
	if f.Type == wire.Error {
		var m wire.ErrorReply
		if err := m.Decode(f.Payload); err != nil {
			answer <- nodeAnswer{err: err}
			return
		}
		answer <- nodeAnswer{err: object.FromCode(m.Code, m.Text)}
		return
	}
	answer <- nodeAnswer{payload: append([]byte(nil), f.Payload...)}
}

// end answers all who wait.
func (k *nodeLink) end(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if errors.Is(pki.Explain(err), object.ErrPermission) {
		err = fmt.Errorf("%w: %w", errCertificate, err)
	}
	k.ended = fmt.Errorf("%w: node %s: %w", errNoAnswer, k.node, err)
	for id, answer := range k.waiting {
		delete(k.waiting, id)
		answer <- nodeAnswer{err: k.ended}
	}
}

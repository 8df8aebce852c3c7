package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/cespare/xxhash/v2"

	"tendril/store/object"
)

// Times of a connection.
const (
	idleTime  = time.Minute      // without a request
	stallTime = 30 * time.Second // for one chunk, or one message
)

// Holder gives what a node has. Every method may be called from many goroutines at once; errors wrap a sentinel of
// store/object, and are told to the other node.
type Holder interface {
	// Open gives a published object to a node. It checks everything that the request says. The caller closes it.
	Open(ctx context.Context, from ID, r Request) (Object, error)
	// Probe describes the node.
	Probe() State
	// Take has the node begin to get a replica. It does not wait for that.
	Take(from ID, n Named) error
	// Drop has the node delete its copies of an object that is published no longer.
	Drop(from ID, n Named) error
}

// Object is the bytes of one object. It is used by one goroutine.
type Object interface {
	Size() uint64
	// Sums gives the checksums of all chunks, 8 bytes each, as they have been since the object was sealed; nil: not
	// known.
	Sums() []byte
	// Range gives n bytes from off on; valid until Close, or the next Range.
	Range(off, n uint64) ([]byte, error)
	Close()
}

// Serve answers a node's requests on conn until that ends, ctx ends, or the node does not keep to the protocol: only
// then there is an error. from is the node. The caller closes conn.
func Serve(ctx context.Context, conn net.Conn, from ID, h Holder) error {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	s := &serving{ctx: ctx, conn: conn, from: from, holder: h}
	for ctx.Err() == nil {
		err := s.next()
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, errIdle) || ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// serving is one connection.
type serving struct {
	ctx    context.Context
	conn   net.Conn
	from   ID
	holder Holder
	buf    []byte // of one message
}

// next does one request. A refusal is answered; an error ends the connection.
func (s *serving) next() error {
	if err := s.conn.SetReadDeadline(time.Now().Add(idleTime)); err != nil {
		return err
	}
	kind, payload, err := readMessage(s.conn, &s.buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errIdle
	}
	if err != nil {
		return err
	}
	var n Named
	switch kind {
	case typePull:
		var r Request
		if err := r.decode(payload); err != nil {
			return errors.Join(err, s.send(appendError(nil, err)))
		}
		return s.pull(r)
	case typeProbe:
		state := s.holder.Probe()
		return s.send(message(nil, typeProbe|replyBit, state.append))
	case typeTake, typeDrop:
		if err := n.decode(payload); err != nil {
			return errors.Join(err, s.send(appendError(nil, err)))
		}
		do := s.holder.Take
		if kind == typeDrop {
			do = s.holder.Drop
		}
		if err := do(s.from, n); err != nil {
			return s.send(appendError(nil, err))
		}
		return s.send(message(nil, kind|replyBit, nothing))
	}
	err = fmt.Errorf("%w: a request of type %d", object.ErrUnsupported, kind)
	return s.send(appendError(nil, err))
}

var errIdle = errors.New("no request came for a while")

func nothing(b []byte) []byte { return b }

// send writes within stallTime.
func (s *serving) send(b []byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(stallTime)); err != nil {
		return err
	}
	_, err := s.conn.Write(b)
	return err
}

// pull answers a request for chunks.
func (s *serving) pull(r Request) error {
	o, err := s.holder.Open(s.ctx, s.from, r)
	if err != nil {
		return s.send(appendError(nil, err))
	}
	defer o.Close()
	if o.Size() != r.SizeBytes {
		return s.send(appendError(nil, fmt.Errorf("%w: object %x has %d bytes here, not %d", object.ErrStorage, r.ID,
			o.Size(), r.SizeBytes)))
	}
	sums := o.Sums()
	known := byte(0)
	if uint64(len(sums)) == 8*chunksOf(r.SizeBytes) {
		known = 1
	} else {
		sums = nil
	}
	head := message(nil, typePull|replyBit, func(b []byte) []byte {
		return append(le.AppendUint32(b, r.Chunks), known)
	})
	for i := r.First; i < r.First+uint64(r.Chunks); i++ {
		b, err := o.Range(i*ChunkBytes, chunkBytes(r.SizeBytes, i))
		if err != nil {
			head = le.AppendUint32(le.AppendUint64(head, 0), noChunk)
			return s.send(appendError(head, err))
		}
		sum := uint64(0)
		if sums != nil {
			sum = le.Uint64(sums[8*i:])
		} else {
			sum = xxhash.Sum64(b)
		}
		head = le.AppendUint32(le.AppendUint64(head, sum), uint32(len(b)))
		if err := s.send(head); err != nil {
			return err
		}
		if _, err := s.conn.Write(b); err != nil {
			return err
		}
		head = head[:0]
	}
	return nil
}

// readMessage reads one message; the payload is valid until the next one. buf grows to maxMessageBytes at most.
func readMessage(conn io.Reader, buf *[]byte) (kind byte, payload []byte, err error) {
	var head [headerBytes]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return 0, nil, err
	}
	n := le.Uint32(head[:])
	if n < headerBytes-4 || n > maxMessageBytes || head[5]|head[6]|head[7] != 0 {
		return 0, nil, fmt.Errorf("%w: a message with the header %x: want %d to %d bytes, and zeros behind the type",
			object.ErrProtocol, head, headerBytes-4, maxMessageBytes)
	}
	n -= headerBytes - 4
	if cap(*buf) < int(n) {
		*buf = make([]byte, n)
	}
	payload = (*buf)[:n]
	if _, err := io.ReadFull(conn, payload); err != nil {
		return 0, nil, fmt.Errorf("%w: a message is cut short: %w", object.ErrProtocol, err)
	}
	return head[4], payload, nil
}

package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"tendril/store/object"
)

// Source is a node that has the object.
type Source struct {
	Node        ID
	Name        string // for messages
	Incarnation ID
}

// Dial connects to a node and makes sure that it is that one. It gives a connection that nobody else uses.
type Dial func(ctx context.Context, s Source) (net.Conn, error)

// Job is one object that is to be got.
type Job struct {
	ID        ID
	Tenant    string
	Epoch     uint64
	SizeBytes uint64
	// Into has room for SizeBytes: nobody else reads or writes it until Pull is back. Several goroutines write. An
	// error ends the transfer. A file in memory costs less so than a mapping of it, whose pages would be made one by
	// one, and cleared before.
	Into    io.WriterAt
	Sources []Source // best first; at least one
	Streams int      // connections at a time; 0: as many as the size is worth
	Rate    *Rate    // nil: as fast as it goes
	// Progress is told the bytes that have arrived, from several goroutines. It must not block. nil: nobody is.
	Progress func(doneBytes uint64)
	// Stall is how long one chunk may take. Default 30 s.
	Stall time.Duration
}

// Result says how a transfer went.
type Result struct {
	Sums    []byte        // XXH64 of each chunk, 8 bytes each
	Known   bool          // the nodes have known them since the object was sealed
	Bytes   map[ID]uint64 // that each node gave
	Faults  []error       // what was met on the way, a few
	Streams int           // connections that were used at a time, at most
	Took    time.Duration
}

const (
	// streamBytes is the part of an object that is worth a connection of its own.
	streamBytes = 32 << 20
	// blockBytes are read, summed and written at a time, while they are in the processor's cache.
	blockBytes = 128 << 10
	// extentChunks is what one request asks for: enough that the way there and back does not count, and little enough
	// that streams end together.
	extentChunks = MaxChunks
	// maxCuts is how often a connection to one node may be cut in a row without a chunk having arrived.
	maxCuts   = 3
	maxFaults = 8
	cutPause  = 50 * time.Millisecond
)

// extent is a run of chunks.
type extent struct{ first, end uint64 }

// pull is a Job under way.
type pull struct {
	Job
	ctx  context.Context
	stop context.CancelFunc // of ctx
	dial Dial

	mu      sync.Mutex
	rest    []extent // what nobody is getting
	left    uint64   // chunks that have not arrived
	at      int      // Sources[at] is asked; len(Sources): none is left
	cuts    int      // of connections to it in a row
	done    uint64   // bytes
	known   bool
	result  Result
	unready error   // what Into answered
	refused []error // why each source that was given up was
	working int
	free    sync.Cond // rest, left, at or working has changed
}

// Pull gets the object from the best source, and what that does not give from the next ones. All of Into is right when
// it succeeds; otherwise Into has anything. Errors: ErrTimeout (ctx), ErrStorage, ErrBusy and others: what each source
// answered; what Into answered.
func Pull(ctx context.Context, job Job, dial Dial) (Result, error) {
	if job.Into == nil || job.SizeBytes == 0 || len(job.Sources) == 0 {
		return Result{}, fmt.Errorf("%w: a transfer of %d bytes from %d nodes", object.ErrInvalid, job.SizeBytes,
			len(job.Sources))
	}
	if job.Stall == 0 {
		job.Stall = stallTime
	}
	all := chunksOf(job.SizeBytes)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &pull{Job: job, ctx: ctx, stop: cancel, dial: dial, left: all, known: true,
		result: Result{Sums: make([]byte, 8*all), Bytes: map[ID]uint64{}}}
	p.free.L = &p.mu
	for first := uint64(0); first < all; first += extentChunks {
		p.rest = append(p.rest, extent{first, min(first+extentChunks, all)})
	}
	began := time.Now()
	p.result.Streams = job.streams()
	var running sync.WaitGroup
	for range p.result.Streams {
		running.Go(p.stream)
	}
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.free.Broadcast()
	})
	running.Wait()
	stop()
	p.result.Took, p.result.Known = time.Since(began), p.known
	return p.result, p.outcome(ctx)
}

// streams is how many connections there are.
func (j *Job) streams() int {
	n := j.Streams
	if n == 0 {
		n = int(min(1+j.SizeBytes/streamBytes, MaxStreams))
	}
	extents := (chunksOf(j.SizeBytes) + extentChunks - 1) / extentChunks
	return int(min(uint64(max(n, 1)), extents))
}

func (p *pull) outcome(ctx context.Context) error {
	switch {
	case p.left == 0:
		return nil
	case p.unready != nil:
		return p.unready
	case ctx.Err() != nil:
		return fmt.Errorf("%w: object %x: %d of %d bytes had arrived: %w", object.ErrTimeout, p.ID, p.done,
			p.SizeBytes, context.Cause(ctx))
	}
	slices.SortStableFunc(p.refused, func(a, b error) int { // whose may end well the next time counts
		return cmp.Compare(lasting(a), lasting(b))
	})
	return fmt.Errorf("object %x could not be got from any of %d nodes: %w", p.ID, len(p.Sources),
		errors.Join(p.refused...))
}

// lasting gives 1 for an error that a source would give again, 0 for one of the moment.
func lasting(err error) int {
	if errors.Is(err, object.ErrBusy) || errors.Is(err, object.ErrTimeout) {
		return 0
	}
	return 1
}

// cutError makes an error of the moment of what a connection ended with, unless that is an answer.
func cutError(err error) error {
	var no *refusal
	if errors.As(err, &no) || errors.Is(err, object.ErrBusy) {
		return err
	}
	return fmt.Errorf("%w: no answer came: %w", object.ErrBusy, err)
}

// stream gets extents over a connection of its own until there are none.
func (p *pull) stream() {
	var conn net.Conn
	of := -1 // which source conn goes to
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	for {
		x, at, ok := p.next()
		if !ok {
			return
		}
		if conn != nil && of != at {
			conn.Close()
			conn = nil
		}
		var err error
		if conn == nil {
			conn, err = p.dial(p.ctx, p.Sources[at])
			of = at
		}
		from := x.first
		if err == nil {
			from, err = p.get(conn, at, x)
		}
		p.settle(at, extent{from, x.end}, from > x.first, err)
		if err != nil && conn != nil {
			conn.Close()
			conn = nil
		}
	}
}

// next gives an extent to get, and the source to ask. It waits while others may fail and leave theirs.
func (p *pull) next() (x extent, at int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.left == 0 || p.at == len(p.Sources) || p.ctx.Err() != nil:
			return x, 0, false
		case len(p.rest) > 0:
			x = p.rest[0]
			p.rest = p.rest[1:]
			p.working++
			return x, p.at, true
		case p.working == 0:
			return x, 0, false
		}
		p.free.Wait()
	}
}

// refusal is an error that the source answered, or a fault of what it sent: it is not asked again.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// settle notes what became of an extent: rest of it has not arrived.
func (p *pull) settle(at int, rest extent, some bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.free.Broadcast()
	p.working--
	if rest.first < rest.end {
		p.rest = append(p.rest, rest)
	}
	if some && at == p.at {
		p.cuts = 0
	}
	if err == nil || p.ctx.Err() != nil {
		return
	}
	err = fmt.Errorf("%s: %w", p.Sources[at].Name, cutError(err))
	if len(p.result.Faults) < maxFaults {
		p.result.Faults = append(p.result.Faults, err)
	}
	if at != p.at { // it is given up already
		return
	}
	var no *refusal
	if !errors.As(err, &no) {
		if p.cuts++; p.cuts < maxCuts {
			p.mu.Unlock()
			pauseFor(p.ctx, cutPause)
			p.mu.Lock()
			return
		}
	}
	if at == p.at {
		p.refused = append(p.refused, err)
		p.at++
		p.cuts = 0
	}
}

func pauseFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// get asks for an extent and reads it. It gives the first chunk that has not arrived.
func (p *pull) get(conn net.Conn, at int, x extent) (from uint64, err error) {
	defer context.AfterFunc(p.ctx, func() { conn.Close() })()
	ask := Request{ID: p.ID, Incarnation: p.Sources[at].Incarnation, Epoch: p.Epoch, SizeBytes: p.SizeBytes,
		First: x.first, Chunks: uint32(x.end - x.first), Tenant: p.Tenant}
	if err := conn.SetDeadline(time.Now().Add(p.Stall)); err != nil {
		return x.first, err
	}
	if _, err := conn.Write(message(nil, typePull, ask.append)); err != nil {
		return x.first, err
	}
	var buf []byte
	known, err := readPullReply(conn, &buf, ask.Chunks)
	if err != nil {
		return x.first, err
	}
	for i := x.first; i < x.end; i++ {
		if err := p.chunk(conn, at, i, known, &buf); err != nil {
			return i, err
		}
	}
	return x.end, nil
}

// readPullReply reads what comes before the chunks.
func readPullReply(conn io.Reader, buf *[]byte, chunks uint32) (known bool, err error) {
	kind, payload, err := readMessage(conn, buf)
	switch {
	case err != nil:
		return false, protocolFault(err)
	case kind == typeError:
		return false, &refusal{decodeError(payload)}
	case kind != typePull|replyBit || len(payload) != 5 || le.Uint32(payload) != chunks || payload[4] > 1:
		return false, &refusal{fmt.Errorf("%w: a reply of type %d with %d bytes to a request for %d chunks",
			object.ErrProtocol, kind, len(payload), chunks)}
	}
	return payload[4] == 1, nil
}

// protocolFault makes a refusal of what a peer sent wrongly; a connection that was cut is none.
func protocolFault(err error) error {
	if errors.Is(err, object.ErrProtocol) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return &refusal{err}
	}
	return err
}

// chunk reads one chunk into its place.
func (p *pull) chunk(conn net.Conn, at int, i uint64, known bool, buf *[]byte) error {
	n := chunkBytes(p.SizeBytes, i)
	if err := p.Rate.wait(p.ctx, n); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(p.Stall)); err != nil {
		return err
	}
	var head [chunkHeaderBytes]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	sum, length := le.Uint64(head[:]), le.Uint32(head[8:])
	if length == noChunk {
		kind, payload, err := readMessage(conn, buf)
		if err == nil && kind != typeError {
			err = fmt.Errorf("%w: a message of type %d in place of an error", object.ErrProtocol, kind)
		}
		if err == nil {
			err = decodeError(payload)
		}
		return &refusal{err}
	}
	if uint64(length) != n {
		return &refusal{fmt.Errorf("%w: chunk %d has %d bytes, want %d", object.ErrProtocol, i, length, n)}
	}
	if len(*buf) < blockBytes {
		*buf = make([]byte, blockBytes)
	}
	digest := xxhash.New()
	for at := uint64(0); at < n; {
		block := (*buf)[:min(blockBytes, n-at)]
		if _, err := io.ReadFull(conn, block); err != nil {
			return err
		}
		_, _ = digest.Write(block) // cannot fail
		if err := p.put(block, i*ChunkBytes+at); err != nil {
			return err
		}
		at += uint64(len(block))
	}
	if have := digest.Sum64(); have != sum {
		return &refusal{fmt.Errorf("%w: object %x is damaged there: the checksum of chunk %d is %016x, but was %016x",
			object.ErrStorage, p.ID, i, have, sum)}
	}
	p.arrived(at, i, n, sum, known)
	return nil
}

// put writes bytes into their place.
func (p *pull) put(b []byte, at uint64) error {
	_, err := p.Into.WriteAt(b, int64(at))
	if err == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unready == nil && p.ctx.Err() == nil {
		p.unready = err
	}
	p.stop()
	return err
}

// arrived counts a chunk.
func (p *pull) arrived(at int, i, n, sum uint64, known bool) {
	p.mu.Lock()
	le.PutUint64(p.result.Sums[8*i:], sum)
	p.result.Bytes[p.Sources[at].Node] += n
	p.left--
	p.done += n
	p.known = p.known && known
	done := p.done
	p.mu.Unlock()
	if p.Progress != nil {
		p.Progress(done)
	}
}

// Rate bounds the bytes a second of all transfers that share it. The nil Rate bounds nothing.
type Rate struct {
	bytes uint64 // a second
	mu    sync.Mutex
	next  time.Time // when the next bytes may come
}

// NewRate makes one; 0 gives nil.
func NewRate(bytesPerSecond uint64) *Rate {
	if bytesPerSecond == 0 {
		return nil
	}
	return &Rate{bytes: bytesPerSecond}
}

// wait waits until n more bytes may come.
func (r *Rate) wait(ctx context.Context, n uint64) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	now := time.Now()
	if r.next.Before(now) {
		r.next = now
	}
	wait := r.next.Sub(now)
	r.next = r.next.Add(time.Duration(float64(n) / float64(r.bytes) * float64(time.Second)))
	r.mu.Unlock()
	pauseFor(ctx, wait)
	return ctx.Err()
}

// call sends a message to a node and reads the answer, which has to be of the type that fits.
func call(ctx context.Context, conn net.Conn, kind byte, payload func([]byte) []byte) ([]byte, error) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(stallTime)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(message(nil, kind, payload)); err != nil {
		return nil, err
	}
	var buf []byte
	got, answer, err := readMessage(conn, &buf)
	switch {
	case err != nil:
		return nil, err
	case got == typeError:
		return nil, decodeError(answer)
	case got != kind|replyBit:
		return nil, fmt.Errorf("%w: an answer of type %d to a request of type %d", object.ErrProtocol, got, kind)
	}
	return slices.Clone(answer), nil
}

// Take asks a node to begin to get a replica of an object. It can be asked again: what is under way goes on, and a
// failure is told for a while.
func Take(ctx context.Context, conn net.Conn, n Named) error {
	_, err := call(ctx, conn, typeTake, n.append)
	return err
}

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/answers"
	"tendril/tools/e2e/await"
)

// relay stands between clients and a node, and can hold back what either says.
type relay struct {
	socket           string
	requests, answer sync.Mutex // held: nothing passes
	cuts             atomic.Int32
}

func newRelay(t *testing.T, n *node) *relay {
	t.Helper()
	r := &relay{socket: filepath.Join(t.TempDir(), "relay")}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			in, err := l.AcceptUnix()
			if err != nil {
				return
			}
			out, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: n.socket, Net: "unix"})
			if err != nil {
				in.Close()
				return
			}
			running.Go(func() { pass(in, out, &r.requests, &r.cuts) })
			running.Go(func() { pass(out, in, &r.answer, nil) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	return r
}

// pass copies bytes and descriptors until an end, which it passes on. While cuts, which may be nil, is positive, what
// comes behind the greeting ends the connection instead.
func pass(from, to *net.UnixConn, hold *sync.Mutex, cuts *atomic.Int32) {
	defer to.Close()
	defer from.Close()
	b, control := make([]byte, 16<<10), make([]byte, 1024)
	for behind := false; ; behind = true {
		n, controls, _, _, err := from.ReadMsgUnix(b, control)
		if n == 0 || err != nil || behind && cuts != nil && cuts.Add(-1) >= 0 {
			return
		}
		hold.Lock()
		_, _, err = to.WriteMsgUnix(b[:n], control[:controls], nil)
		hold.Unlock()
		messages, _ := unix.ParseSocketControlMessage(control[:controls])
		for _, m := range messages {
			fds, _ := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
		if err != nil {
			return
		}
	}
}

func (r *relay) dial(t *testing.T) *client.Conn {
	t.Helper()
	c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// held is what a node's clients have of it.
type held struct{ objects, open, references, streams int }

func (n *node) held(t *testing.T, look *client.Conn) held {
	t.Helper()
	s := n.store.Status()
	return held{s.Objects, s.OpenObjects, s.References, len(must(look.Streams(context.Background(), ""))(t))}
}

// A call whose context ends while its answer is under way says what it waited for. What the answer brings goes back,
// without another call, and the connection is as good as before.
func TestWhatComesTooLateGoesBack(t *testing.T) {
	for name, test := range map[string]struct {
		before func(t *testing.T, c *client.Conn) // makes what the call finds
		call   func(ctx context.Context, c *client.Conn) error
	}{
		"Create": {call: func(ctx context.Context, c *client.Conn) error {
			_, err := c.Create(ctx, 100, client.CreateOptions{})
			return err
		}},
		"Create with labels": {call: func(ctx context.Context, c *client.Conn) error {
			_, err := c.Create(ctx, 100, client.CreateOptions{Labels: map[string]string{"a": "b"}})
			return err
		}},
		"Put": {call: func(ctx context.Context, c *client.Conn) error {
			_, err := c.Put(ctx, []byte("text"), client.CreateOptions{})
			return err
		}},
		"NewUpload": {call: func(ctx context.Context, c *client.Conn) error {
			_, err := c.NewUpload(ctx, 100, client.CreateOptions{})
			return err
		}},
		"GetByName": {makeNamed, func(ctx context.Context, c *client.Conn) error {
			_, err := c.GetByName(ctx, "named", 0)
			return err
		}},
		"Open": {makeNamed, func(ctx context.Context, c *client.Conn) error {
			_, err := c.Open(ctx, object.ID{}, "named", 0)
			return err
		}},
		"Compose": {makeNamed, func(ctx context.Context, c *client.Conn) error {
			info, err := c.StatByName(context.Background(), "named")
			if err != nil {
				return err
			}
			_, err = c.Compose(ctx, []object.Member{{Name: "m", ID: info.ID}}, client.CreateOptions{})
			return err
		}},
		"OpenWriter": {call: func(ctx context.Context, c *client.Conn) error {
			_, err := c.OpenWriter(ctx, "stream", client.StreamOptions{})
			return err
		}},
		"OpenReader": {call: func(ctx context.Context, c *client.Conn) error {
			_, err := c.OpenReader(ctx, "stream", client.StreamOptions{})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, store.Options{})
			r := newRelay(t, n)
			c, look := r.dial(t), n.dial(t)
			if test.before != nil {
				test.before(t, c)
			}
			before, fds := n.held(t, look), openFDs(t)
			ctx, cancel := context.WithCancel(context.Background())
			failed := make(chan error, 1)
			go func() {
				// Compose asks for its member first
				failed <- test.call(&lateContext{Context: ctx, hold: &r.answer}, c)
			}()
			await.Until(t, "the daemon to have done it", func() bool { return n.held(t, look) != before })
			cancel()
			err := <-failed
			if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "waiting for the daemon") {
				t.Errorf("%v", err)
			}
			r.answer.Unlock()
			await.Until(t, "what came too late to go back", func() bool { return n.held(t, look) == before })
			if _, err := admin.Of(c).Status(context.Background()); err != nil {
				t.Errorf("the next call: %v", err)
			}
			await.Until(t, "descriptors to be closed", func() bool { return openFDs(t) <= fds+2 }) // a segment stays here and there
		})
	}
}

func makeNamed(t *testing.T, c *client.Conn) {
	t.Helper()
	o := must(c.Put(context.Background(), []byte("text"), client.CreateOptions{Name: "named"}))(t)
	o.Release()
	must(admin.Of(c).Status(context.Background()))(t) // the release went before it
}

// lateContext holds answers back from when it is first looked at.
type lateContext struct {
	context.Context
	once sync.Once
	hold *sync.Mutex
}

func (c *lateContext) Done() <-chan struct{} {
	c.once.Do(c.hold.Lock)
	return c.Context.Done()
}

func TestCancelWhileWaitingForAName(t *testing.T) {
	n := startNode(t, store.Options{})
	c, other, look := n.dial(t), n.dial(t), n.dial(t)
	before := n.held(t, look)
	for name, call := range map[string]func(ctx context.Context) error{
		"GetByName": func(ctx context.Context) error { _, err := c.GetByName(ctx, "late", time.Hour); return err },
		"GetMany": func(ctx context.Context) error {
			_, err := c.GetMany(ctx, []client.Wanted{{Name: "late"}}, time.Hour)
			return err
		},
		"Open": func(ctx context.Context) error { _, err := c.Open(ctx, object.ID{}, "late", time.Hour); return err },
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		err := call(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrDisconnected) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := must(other.Put(context.Background(), []byte("x"), client.CreateOptions{Name: "late"}))(t) // now it comes
	o.Release()
	if err := other.DeleteByName(context.Background(), "late"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the references that came too late to go back", func() bool { return n.held(t, look) == before })
}

// TestContextEndsBeforeTheDaemonsWait: the daemon gives up a second after a call's deadline. A client that had no
// processor for as long finds that answer, and hears of its context all the same.
func TestContextEndsBeforeTheDaemonsWait(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *client.Conn) error{
		"GetByName": func(ctx context.Context, c *client.Conn) error {
			_, err := c.GetByName(ctx, "late", time.Hour)
			return err
		},
		"Open": func(ctx context.Context, c *client.Conn) error {
			_, err := c.Open(ctx, object.ID{}, "late", time.Hour)
			return err
		},
		"Pop": func(ctx context.Context, c *client.Conn) error {
			r, err := c.OpenReader(context.Background(), "stream", client.StreamOptions{})
			if err == nil {
				_, err = r.Pop(ctx, -1)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			d := answers.New(t, wire.Version, func(kind wire.Type, _ int) (wire.Type, ipc.Payload) {
				if kind == wire.StreamOpen {
					return kind | wire.ReplyBit, &wire.StreamOpenReply{Stream: 1, Frames: 4, Bytes: 1 << 20}
				}
				cancel() // the client looks later
				return wire.Error, &wire.ErrorReply{Code: object.ErrTimeout.Code(), Text: "nothing came"}
			})
			c := dialAt(t, client.Options{Socket: d.Socket})
			if err := call(ctx, c); !errors.Is(err, context.Canceled) || errors.Is(err, object.ErrTimeout) {
				t.Errorf("%v", err)
			}
		})
	}
}

// contextWithin ends when it is first looked at within all of some functions.
type contextWithin struct {
	context.Context
	end    context.CancelFunc
	within []string // ends of their names
}

func (c *contextWithin) Done() <-chan struct{} {
	stack := make([]byte, 64<<10)
	stack = stack[:runtime.Stack(stack, false)]
	if !slices.ContainsFunc(c.within, func(name string) bool { return !bytes.Contains(stack, []byte(name+"(")) }) {
		c.end()
	}
	return c.Context.Done()
}

func TestCancelWhileWaitingForMemory(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 8 << 20})
	c, other, look := n.dial(t), n.dial(t), n.dial(t)
	kept := must(other.Create(context.Background(), 6<<20, client.CreateOptions{}))(t)
	before := n.held(t, look)
	for name, within := range map[string][]string{
		"in a pause":   {"client.(*Conn).retryFull"},
		"in a request": {"client.(*Conn).retryFull", "client.(*Conn).roundTrip"},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		_, err := c.Create(&contextWithin{ctx, cancel, within}, 5<<20, client.CreateOptions{})
		cancel()
		if !errors.Is(err, context.Canceled) || !errors.Is(err, object.ErrFull) ||
			!strings.Contains(err.Error(), "waiting for memory") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := n.held(t, look); now != before {
		t.Errorf("%+v, want %+v", now, before)
	}
	kept.Abort(context.Background())
	b := must(c.Create(context.Background(), 5<<20, client.CreateOptions{}))(t)
	if err := b.Abort(context.Background()); err != nil {
		t.Error(err)
	}
}

// A daemon that reads nothing holds up no call beyond its context, those neither that only want to send. What was sent
// in part goes out whole when the daemon reads again.
func TestCancelBehindAStalledDaemon(t *testing.T) {
	n := startNode(t, store.Options{})
	r := newRelay(t, n)
	c, look := r.dial(t), n.dial(t)
	before := n.held(t, look)
	writing, stop := context.WithCancel(context.Background())
	const size = 8 << 20 // more than sockets hold
	up := must(c.NewUpload(writing, size, client.CreateOptions{}))(t)
	r.requests.Lock()
	wrote := make(chan error, 1)
	go func() {
		_, err := up.Write(make([]byte, size))
		wrote <- err
	}()
	for range 3 { // behind a message of which a part is out
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		if _, err := admin.Of(c).Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call behind: %v", err)
		}
		cancel()
	}
	stop()
	if err := <-wrote; !errors.Is(err, context.Canceled) {
		t.Errorf("the write: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := up.Abort(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("an abort that the daemon does not read: %v", err)
	}
	r.requests.Unlock()
	if _, err := admin.Of(c).Status(context.Background()); err != nil {
		t.Errorf("the next call: %v", err)
	}
	await.Until(t, "the upload to be gone", func() bool {
		up.Abort(context.Background())
		return n.held(t, look) == before
	})
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A seal under way when its context ends is as the daemon does it: another Seal gives the object, and Abort gives the
// reference back.
func TestCancelASeal(t *testing.T) {
	n := startNode(t, store.Options{})
	r := newRelay(t, n)
	c, look := r.dial(t), n.dial(t)
	before := n.held(t, look)
	for _, again := range []bool{true, false} {
		b := must(c.Create(context.Background(), 100, client.CreateOptions{}))(t)
		copy(b.Bytes(), "text")
		ctx, cancel := context.WithCancel(context.Background())
		failed := make(chan error, 1)
		r.answer.Lock()
		go func() {
			_, err := b.Seal(ctx)
			failed <- err
		}()
		await.Until(t, "the seal", func() bool {
			return must(look.Stat(context.Background(), b.ID()))(t).State == object.Sealed
		})
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		r.answer.Unlock()
		if again {
			o := must(b.Seal(context.Background()))(t)
			if string(o.Bytes()[:4]) != "text" {
				t.Errorf("%q", o.Bytes()[:4])
			}
			o.Release()
		} else if err := b.Abort(context.Background()); err != nil {
			t.Error(err)
		}
		await.Until(t, "the object to go", func() bool { return n.held(t, look) == before })
	}
}

// What is under way of a stream when a context ends: a frame that comes too late goes back, for whoever pops next.
func TestCancelAPop(t *testing.T) {
	n := startNode(t, store.Options{})
	c, other := n.dial(t), n.dial(t)
	for _, ahead := range []int{0, 4} {
		name := fmt.Sprint("ahead", ahead)
		reader := must(c.OpenReader(context.Background(), name, client.StreamOptions{Ahead: ahead}))(t)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		if _, err := reader.Pop(ctx, -1); !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "stream "+strconv.Quote(name)) {
			t.Errorf("ahead %d: %v", ahead, err)
		}
		cancel()
		w := must(other.OpenWriter(context.Background(), name, client.StreamOptions{}))(t)
		if err := w.Write(context.Background(), []byte("frame"), nil, 0); err != nil {
			t.Fatal(err)
		}
		f := must(reader.Pop(context.Background(), -1))(t)
		if f.Number != 1 || string(f.Bytes()) != "frame" {
			t.Errorf("ahead %d: frame %d, %q", ahead, f.Number, f.Bytes())
		}
		f.Release()
		reader.Close(context.Background())
		if err := w.End(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// TestCloseBehindACancelledPop: a frame on its way to a pop whose context has ended is for the next reader, also where
// the stream is closed before it comes, and nobody holds it.
func TestCloseBehindACancelledPop(t *testing.T) {
	n := startNode(t, store.Options{})
	r := newRelay(t, n)
	c, other, look := r.dial(t), n.dial(t), n.dial(t)
	before := n.held(t, look)
	bg := context.Background()
	w := must(other.OpenWriter(bg, "stream", client.StreamOptions{}))(t)
	late := must(c.OpenReader(bg, "stream", client.StreamOptions{}))(t)
	ctx, cancel := context.WithCancel(bg)
	popped := make(chan error, 1)
	r.answer.Lock()
	go func() {
		_, err := late.Pop(ctx, -1)
		popped <- err
	}()
	if err := w.Write(bg, []byte("frame"), nil, 0); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the pop", func() bool { return must(look.Streams(bg, ""))(t)[0].Frames == 0 })
	cancel()
	if err := <-popped; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	short, cancelShort := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancelShort()
	late.Close(short)
	r.answer.Unlock()
	next := must(other.OpenReader(bg, "stream", client.StreamOptions{}))(t)
	f, err := next.Pop(bg, 5*time.Minute)
	if err != nil || f.Number != 1 || string(f.Bytes()) != "frame" {
		t.Fatalf("the next reader: %v", err)
	}
	f.Release()
	next.Close(bg)
	late.Close(bg)
	if err := w.End(bg); err != nil {
		t.Error(err)
	}
	await.Until(t, "everything to go back", func() bool { return n.held(t, look) == before })
}

// TestAbortOfAPushThatHappened: a push whose context ended may be carried out all the same. Then an abort takes the
// frame from nobody: neither from a reader of this connection, which has it by then.
func TestAbortOfAPushThatHappened(t *testing.T) {
	for _, ahead := range []int{0, 4} {
		n := startNode(t, store.Options{})
		r := newRelay(t, n)
		c, look := r.dial(t), n.dial(t)
		before := n.held(t, look)
		bg := context.Background()
		w := must(c.OpenWriter(bg, "stream", client.StreamOptions{Ahead: ahead}))(t)
		reader := must(c.OpenReader(bg, "stream", client.StreamOptions{}))(t)
		b := must(w.Buffer(bg, 5))(t)
		copy(b.Bytes(), "frame")
		frames := make(chan *client.Frame, 1)
		go func() {
			f, err := reader.Pop(bg, -1)
			if err != nil {
				t.Error(err)
			}
			frames <- f
		}()
		await.Until(t, "the pop", func() bool { return must(look.Streams(bg, ""))(t)[0].WaitingReaders == 1 })
		r.requests.Lock()
		ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
		err := w.Push(ctx, b, nil, time.Hour)
		if err == nil {
			err = w.Flush(ctx)
		}
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		b.Abort(bg)
		r.requests.Unlock()
		f := <-frames
		must(admin.Of(c).Status(bg))(t) // what was sent before is done
		if now := n.held(t, look); now.references != before.references+1 || string(f.Bytes()) != "frame" {
			t.Errorf("ahead %d: %+v, %q", ahead, now, f.Bytes())
		}
		f.Release()
		reader.Close(bg)
		w.Close(bg)
		await.Until(t, "everything to go back", func() bool { return n.held(t, look) == before })
	}
}

// TestAbortOfAPushThatFails: it is given back when that is known.
func TestAbortOfAPushThatFails(t *testing.T) {
	n := startNode(t, store.Options{})
	r := newRelay(t, n)
	c, look := r.dial(t), n.dial(t)
	bg := context.Background()
	w := must(c.OpenWriter(bg, "stream", client.StreamOptions{Frames: 1}))(t)
	if err := w.Write(bg, []byte("first"), nil, 0); err != nil {
		t.Fatal(err)
	}
	before := n.held(t, look)
	b := must(w.Buffer(bg, 5))(t)
	r.requests.Lock()
	for range 2 { // the second is behind the first
		ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
		if err := w.Push(ctx, b, nil, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		cancel()
	}
	b.Abort(bg)
	r.requests.Unlock()
	w.Close(bg) // memory for the next frame
	await.Until(t, "the buffer to go back", func() bool { return n.held(t, look) == before })
}

// TestAPushAheadThatIsNotSent: the buffer is the Writer's, and given back.
func TestAPushAheadThatIsNotSent(t *testing.T) {
	n := startNode(t, store.Options{})
	r := newRelay(t, n)
	c, look := r.dial(t), n.dial(t)
	bg := context.Background()
	w := must(c.OpenWriter(bg, "stream", client.StreamOptions{Ahead: 4}))(t)
	before := n.held(t, look)
	b := must(w.Buffer(bg, 5))(t)
	const size = 8 << 20 // more than sockets hold
	writing, stop := context.WithCancel(bg)
	up := must(c.NewUpload(writing, size, client.CreateOptions{}))(t)
	r.requests.Lock()
	wrote := make(chan error, 1)
	go func() {
		_, err := up.Write(make([]byte, size))
		wrote <- err
	}()
	for full := false; !full; { // until one is not even sent
		ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
		_, err := admin.Of(c).Status(ctx)
		cancel()
		full = strings.Contains(err.Error(), "send a ")
	}
	ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	if err := w.Push(ctx, b, nil, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	cancel()
	stop()
	<-wrote
	r.requests.Unlock()
	up.Abort(bg)
	w.Close(bg)
	before.streams--
	await.Until(t, "the buffer to go back", func() bool { return n.held(t, look) == before })
}

// TestBothSendMuch: while every goroutine waits for room to send, somebody reads what the daemon says: it reads nothing
// more where nobody takes its answers.
func TestBothSendMuch(t *testing.T) {
	n := startNode(t, store.Options{})
	r := newRelay(t, n)
	c := r.dial(t)
	bg := context.Background()
	const size = 3 << 20
	o := must(n.dial(t).Put(bg, make([]byte, size), client.CreateOptions{Name: "large"}))(t)
	defer o.Release()
	var running sync.WaitGroup
	var calls atomic.Int64 // that have come back
	for i := range 16 {
		running.Go(func() {
			for k := range 12 {
				var err error
				if (i+k)%2 == 0 {
					var up *client.Upload
					if up, err = c.NewUpload(bg, size, client.CreateOptions{}); err == nil {
						_, err = up.Write(make([]byte, size))
						up.Abort(bg)
					}
				} else {
					var far *client.Remote
					if far, err = c.Open(bg, o.ID(), "", 0); err == nil {
						err = far.CopyRange(bg, io.Discard, 0, size)
						far.Close()
					}
				}
				calls.Add(1)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	over := make(chan struct{})
	go func() {
		running.Wait()
		close(over)
	}()
	before, since := int64(0), time.Now()
	for {
		if now := calls.Load(); now != before { // how long all take is the machine's affair
			before, since = now, time.Now()
		}
		select {
		case <-over:
			return
		default: // the daemon reads nothing for a while
			if time.Since(since) > 5*time.Minute {
				c.Close()
				<-over
				t.Fatalf("nobody goes on after %d calls", before)
			}
			r.requests.Lock()
			time.Sleep(5 * time.Millisecond)
			r.requests.Unlock()
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// TestDialGivesUp: nobody accepts, or who does says nothing.
func TestDialGivesUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: socket}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	fds := openFDs(t)
	for range 3 { // the first waits for an answer, later ones for room
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		if _, err := client.Dial(ctx, client.Options{Socket: socket}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		cancel()
	}
	if now := openFDs(t); now != fds {
		t.Errorf("%d descriptors, %d before", now, fds)
	}
}

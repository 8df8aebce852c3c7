package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril/client"
	"tendril/daemon/frontdoor"
	"tendril/store"
	"tendril/store/object"
)

// withNode has the examples find a daemon where a program looks for one.
type withNode struct{ *testing.M }

func (m withNode) Run() int {
	dir, err := os.MkdirTemp("", "tendril-examples-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := store.New(store.Options{CapacityBytes: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	socket := filepath.Join(dir, "tendril.sock")
	door, err := frontdoor.Listen(frontdoor.Options{
		Socket: socket, Store: s, Backend: &backend{store: s}, DaemonVersion: "test",
		Tenant: func(uid, gid uint32) string { return fmt.Sprintf("uid:%d", uid) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer door.Close()
	os.Setenv("TENDRIL_SOCKET", socket)
	return m.M.Run()
}

// check ends an example. A program would return its errors.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// One process fills shared memory in place and seals it; another gets the same memory by its name.
func Example() {
	conn, err := client.Dial(context.Background(), client.Options{}) // this user's daemon, else the system's
	check(err)
	defer conn.Close()

	buffer, err := conn.Create(context.Background(), 5, client.CreateOptions{Name: "greeting"})
	check(err)
	copy(buffer.Bytes(), "hello")
	made, err := buffer.Seal(context.Background()) // it does not change from here on
	check(err)
	made.Release() // its name keeps it

	got, err := conn.GetByName(context.Background(), "greeting", time.Second) // in any process
	check(err)
	defer got.Release()
	fmt.Println(string(got.Bytes()), got.Class())

	check(conn.DeleteByName(context.Background(), "greeting"))
	// Output: hello named
}

// A Buffer is filled in place and sealed, or given up.
func ExampleBuffer() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	check(err)
	defer conn.Close()

	buffer, err := conn.Create(ctx, 4, client.CreateOptions{Labels: map[string]string{"kind": "counter"}})
	check(err)
	defer buffer.Abort(ctx) // does nothing after Seal
	for i := range buffer.Bytes() {
		buffer.Bytes()[i] = byte('0' + i)
	}
	sealed, err := buffer.Seal(ctx)
	check(err)
	defer sealed.Release()
	fmt.Println(string(sealed.Bytes()), buffer.Bytes() == nil)
	// Output: 0123 true
}

// An Object is one reference. Its bytes are the store's memory, for reading, until Release.
func ExampleObject() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	check(err)
	defer conn.Close()
	made, err := conn.Put(ctx, []byte("shared"), client.CreateOptions{Meta: []byte("text/plain")})
	check(err)

	got, err := conn.Get(ctx, made.ID(), 0) // another reference, as another process takes one
	check(err)
	made.Release()
	info, err := got.Info(ctx)
	check(err)
	fmt.Println(string(got.Bytes()), string(got.Meta()), info.Refs)
	got.Release() // nothing keeps it any more
	_, err = conn.Stat(ctx, got.ID())
	fmt.Println(got.Bytes() == nil, errors.Is(err, object.ErrNotFound))
	// Output:
	// shared text/plain 1
	// true true
}

// An Upload is an io.Writer. It needs no shared memory, so it works on another machine's daemon, too.
func ExampleUpload() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{}) // or client.DialServer
	check(err)
	defer conn.Close()

	upload, err := conn.NewUpload(ctx, 11, client.CreateOptions{Name: "uploaded", EphemeralName: true})
	check(err)
	defer upload.Abort(ctx) // does nothing after Seal
	_, err = io.Copy(upload, strings.NewReader("hello there"))
	check(err)
	check(upload.Seal(ctx))
	defer upload.Release()

	info, err := conn.StatByName(ctx, "uploaded")
	check(err)
	fmt.Println(info.SizeBytes, info.ID == upload.ID())
	// Output: 11 true
}

// A Remote is read over the connection, in parts: on another machine's daemon there is no shared memory.
func ExampleRemote() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{}) // or client.DialServer
	check(err)
	defer conn.Close()
	made, err := conn.Put(ctx, []byte("the middle of it"), client.CreateOptions{})
	check(err)
	defer made.Release()

	remote, err := conn.Open(ctx, made.ID(), "", 0)
	check(err)
	defer remote.Close()
	check(remote.CopyRange(ctx, os.Stdout, 4, 6))
	fmt.Println(" is a part of", remote.Size())
	// Output: middle is a part of 16
}

// A server is another machine's daemon, after tendril login there, or over ssh.
func ExampleDialServer() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // to connect
	defer cancel()
	conn, err := client.DialServer(ctx, "gpubox:7433", client.Options{}) // or ssh://me@gpubox
	check(err)
	defer conn.Close()

	remote, err := conn.Open(context.Background(), object.ID{}, "weights", time.Minute)
	check(err)
	defer remote.Close()
	file, err := os.Create("weights")
	check(err)
	check(remote.CopyRange(context.Background(), file, 0, remote.Size()))
	check(file.Close())
}

// What is published under a name is found at every node of the cluster.
func ExampleConn_Publish() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	check(err)
	defer conn.Close()
	made, err := conn.Put(ctx, []byte("for all nodes"), client.CreateOptions{Name: "weights"})
	check(err)
	defer made.Release()

	_, err = conn.Publish(ctx, made.ID(), "", false) // under its own name; another may not have it
	check(err)
	state, err := conn.Replicate(ctx, made.ID(), "", client.ReplicateOptions{Wanted: 2}) // on two nodes, soon
	check(err)
	fmt.Println(string(state))

	elsewhere, err := client.DialServer(ctx, "gpubox", client.Options{})
	check(err)
	defer elsewhere.Close()
	got, err := elsewhere.Open(ctx, object.ID{}, "weights", time.Minute) // comes over the network where it must
	check(err)
	got.Close()
}

func ExampleConn_Update() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	check(err)
	defer conn.Close()
	o, err := conn.Put(ctx, []byte("x"), client.CreateOptions{Labels: map[string]string{"stage": "new"}})
	check(err)
	defer o.Release()

	life := time.Hour
	check(conn.Update(ctx, o.ID(), client.Change{TTL: &life, Labels: map[string]string{"stage": "done"}}))
	list, err := conn.ListWhere(ctx, client.Query{Labels: map[string]string{"stage": "done"}})
	check(err)
	fmt.Println(len(list), list[0].Class)
	check(conn.Delete(ctx, o.ID()))
	// Output: 1 ttl
}

// Others read what is shared with them, as TENANT/NAME.
func ExampleConn_Share() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	check(err)
	defer conn.Close()
	o, err := conn.Put(ctx, []byte("for the group"), client.CreateOptions{Name: "results", EphemeralName: true})
	check(err)
	defer o.Release()

	check(conn.Share(ctx, o.ID(), "gid:1000"))
	info, err := conn.Stat(ctx, o.ID())
	check(err)
	fmt.Println(len(info.Grants))
	check(conn.Unshare(ctx, o.ID(), "gid:1000"))
	// Output: 1
}

// An object in a GPU's memory: the descriptor of its memory goes to CUDA, which maps it.
func ExampleDeviceBuffer() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	check(err)
	defer conn.Close()
	gpu, err := conn.FindGPU(ctx, "cuda:0")
	check(err)

	buffer, err := conn.CreateDevice(ctx, gpu, 1<<20, client.CreateOptions{Name: "tensor"})
	check(err)
	defer buffer.Abort(ctx) // does nothing after Seal
	memory := buffer.Memory.TakeFile()
	defer memory.Close()
	// cuMemImportFromShareableHandle(memory.Fd()), cuMemMap, a kernel that fills it, cuStreamSynchronize
	sealed, err := buffer.Seal(ctx)
	check(err)
	defer sealed.Release()
}

// A Reader takes frames out of a stream. One that it could not use goes back for others.
func ExampleReader() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	check(err)
	defer conn.Close()
	writer, err := conn.OpenWriter(ctx, "jobs", client.StreamOptions{})
	check(err)
	check(writer.Write(ctx, []byte("a job"), []byte("urgent"), 0))
	check(writer.End(ctx))

	reader, err := conn.OpenReader(ctx, "jobs", client.StreamOptions{})
	check(err)
	defer reader.Close(ctx)
	frame, err := reader.Pop(ctx, time.Second)
	check(err)
	reader.Unpop(frame)
	frame, err = reader.Pop(ctx, time.Second)
	check(err)
	fmt.Println(frame.Number, string(frame.Bytes()), string(frame.Meta()))
	frame.Release()
	_, err = reader.Pop(ctx, -1)
	fmt.Println(errors.Is(err, object.ErrEnded))
	// Output:
	// 1 a job urgent
	// true
}

func ExampleConn_Put() {
	conn, err := client.Dial(context.Background(), client.Options{})
	check(err)
	defer conn.Close()

	o, err := conn.Put(context.Background(), []byte("for a minute"), client.CreateOptions{
		Name: "short", TTL: time.Minute, Labels: map[string]string{"kind": "note"},
	})
	check(err)
	defer o.Release()
	fmt.Println(o.Size(), o.Class())

	_, err = conn.Put(context.Background(), nil, client.CreateOptions{Name: "short"})
	fmt.Println(errors.Is(err, object.ErrExists))
	// Output:
	// 12 ttl
	// true
}

// A get can wait for an object that does not exist yet, as long as the context lets it.
func ExampleConn_GetByName() {
	conn, err := client.Dial(context.Background(), client.Options{})
	check(err)
	defer conn.Close()

	_, err = conn.GetByName(context.Background(), "missing", 0)
	fmt.Println(errors.Is(err, object.ErrNotFound))

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err = conn.GetByName(ctx, "missing", time.Hour)
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output:
	// true
	// true
}

func ExampleConn_Objects() {
	conn, err := client.Dial(context.Background(), client.Options{})
	check(err)
	defer conn.Close()
	for _, name := range []string{"list/a", "list/b", "other"} {
		o, err := conn.Put(context.Background(), []byte(name), client.CreateOptions{Name: name, EphemeralName: true})
		check(err)
		defer o.Release()
	}

	for info, err := range conn.Objects(context.Background(),
		client.Query{Prefix: "list/"}) { // page by page, however many there are
		check(err)
		fmt.Println(info.Name, info.SizeBytes)
	}
	// Output:
	// list/a 6
	// list/b 6
}

// A stream is a bounded queue of objects. Each frame goes to one reader.
func ExampleWriter() {
	conn, err := client.Dial(context.Background(), client.Options{})
	check(err)
	defer conn.Close()
	ctx := context.Background()

	writer, err := conn.OpenWriter(ctx, "video", client.StreamOptions{Frames: 4})
	check(err)
	for _, text := range []string{"one", "two"} {
		frame, err := writer.Buffer(ctx, uint64(len(text)))
		check(err)
		copy(frame.Bytes(), text)
		check(writer.Push(ctx, frame, nil, time.Second)) // waits for room as long as that
	}
	check(writer.End(ctx))

	reader, err := conn.OpenReader(ctx, "video", client.StreamOptions{})
	check(err)
	defer reader.Close(ctx)
	for {
		frame, err := reader.Pop(ctx, time.Second)
		if errors.Is(err, object.ErrEnded) {
			break
		}
		check(err)
		fmt.Println(frame.Number, string(frame.Bytes()))
		frame.Release()
	}
	// Output:
	// 1 one
	// 2 two
}

// Several processes fill one object. Who made it seals it when all are done.
func ExamplePart() {
	conn, err := client.Dial(context.Background(), client.Options{})
	check(err)
	defer conn.Close()

	whole, err := conn.Create(context.Background(), 6, client.CreateOptions{Name: "mosaic", Shared: true,
		EphemeralName: true})
	check(err)
	copy(whole.Bytes()[:3], "abc")

	other, err := client.Dial(context.Background(), client.Options{}) // in another process
	check(err)
	defer other.Close()
	part, err := other.Fill(context.Background(), object.ID{}, "mosaic")
	check(err)
	copy(part.Bytes()[3:], "def")
	check(part.Done(context.Background()))

	sealed, err := whole.SealFilled(context.Background(), time.Second, false)
	check(err)
	defer sealed.Release()
	fmt.Println(string(sealed.Bytes()))
	// Output: abcdef
}

// A composite keeps its members, whatever becomes of their own names.
func ExampleTree() {
	conn, err := client.Dial(context.Background(), client.Options{})
	check(err)
	defer conn.Close()
	left, err := conn.Put(context.Background(), []byte("L"), client.CreateOptions{})
	check(err)
	right, err := conn.Put(context.Background(), []byte("R"), client.CreateOptions{})
	check(err)
	pair, err := conn.Compose(context.Background(), []object.Member{{Name: "left", ID: left.ID()}, {Name: "right",
		ID: right.ID()}},
		client.CreateOptions{})
	check(err)
	defer pair.Release()
	left.Release()
	right.Release()

	tree, err := conn.GetTree(context.Background(), pair.ID(), 0)
	check(err)
	defer tree.ReleaseAll()
	fmt.Println(string(tree.Members["left"].Object.Bytes()), string(tree.Members["right"].Object.Bytes()))
	// Output: L R
}

func ExampleWatch() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	made := func() { // once it listens
		conn, err := client.Dial(context.Background(), client.Options{})
		check(err)
		defer conn.Close()
		o, err := conn.Put(context.Background(), []byte("done"), client.CreateOptions{Name: "job/1", EphemeralName: true})
		check(err)
		o.Release()
	}
	err := client.Watch(ctx, client.Options{}, "job/", made, func(e client.Event) error {
		fmt.Println(e.Kind, e.Name, e.SizeBytes)
		if e.Kind == "gone" {
			cancel()
		}
		return nil
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// sealed job/1 4
	// gone job/1 4
	// true
}

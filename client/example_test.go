package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
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

package session_test

import (
	"context"
	"log"

	"tendril/client"
	"tendril/client/session"
	"tendril/store/object"
)

// A draft is filled by a worker of the session, on its device, and becomes an object where it is.
func ExampleDraft() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	s := session.Of(conn)
	_, _, err = s.Open(ctx, "1.0", []byte(`{"protocol":1}`)) // the devices that it may use
	if err != nil {
		log.Fatal(err)
	}
	worker, err := s.OpenWorker(ctx, 0)
	if err != nil {
		log.Fatal(err)
	}
	gpu, err := conn.FindGPU(ctx, "cuda:0") // workers on this machine are not given memory of kind opencl
	if err != nil {
		log.Fatal(err)
	}
	draft, err := s.DraftDevice(ctx, gpu, 1<<20, nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := s.AttachObject(ctx, worker.ID, draft.ID(), ""); err != nil { // its commands write it from here on
		draft.Abort(ctx)
		log.Fatal(err)
	}
	if err := draft.Publish(ctx, "result"); err != nil {
		log.Fatal(err)
	}
	s.ReleaseID(draft.ID())
}

// A segment is memory that a session's workers share with the program.
func ExampleSegment() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	s := session.Of(conn)
	if _, _, err := s.Open(ctx, "1.0", []byte(`{"protocol":1}`)); err != nil {
		log.Fatal(err)
	}
	memory, err := s.AllocSegment(ctx, 1<<20, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer memory.Free() // does nothing after Publish
	copy(memory.Bytes(), "a result")
	memory.Unmap() // so that it becomes an object without a copy
	if _, err := memory.Publish(ctx, 8, object.Named, "result", nil, false); err != nil {
		log.Fatal(err)
	}
}

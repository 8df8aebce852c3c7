//go:build cgo

package worker

import (
	"testing"

	"tendril/forwarding/link"
)

// A first connection that is cut during its handshake may be ready only after the second. The one that is not used
// must not tell the client that its session is over.
func TestTwoFirstConnections(t *testing.T) {
	r := &remote{up: make([]resumable, 1), streams: make(chan *link.Stream, 1), lost: make(chan struct{}, 1)}
	r.options.Lost = r.noteLoss
	open := func() (client *link.Stream, took bool) {
		ours, theirs := tcpEnds(t)
		taken := make(chan bool, 1)
		r.handshakes++
		go func() { taken <- r.takeOver(0, theirs) }()
		client, err := link.OpenStream(link.Client, ours, link.Options{Lost: func() {}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return client, <-taken
	}
	ours, theirs := tcpEnds(t)
	late := make(chan bool, 1)
	r.handshakes++
	go func() { late <- r.takeOver(0, theirs) }() // waits for the greeting
	if _, took := open(); !took {
		t.Fatal("the first to be ready is not taken")
	}
	used := <-r.streams
	defer used.Close()
	client, err := link.OpenStream(link.Client, ours, link.Options{Lost: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if <-late {
		t.Fatal("two streams are the session's")
	}
	for !client.Lost() {
		if _, _, _, err := client.Next(); err != nil {
			t.Fatalf("the client heard that its session is over: %v", err)
		}
	}
}

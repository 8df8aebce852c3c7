package frontdoor

import (
	"fmt"
	"sync"
	"testing"

	"tendril/ipc/wire"
)

// TestFateHoldsNobodyUp: a question for a worker's end may wait a second for it, and several are asked in a row where
// several workers are suspected: other requests of the connection are answered meanwhile. It ends with the connection.
func TestFateHoldsNobodyUp(t *testing.T) {
	d := open(t, nil)
	release := sync.OnceFunc(func() { close(d.backend.fate) })
	t.Cleanup(release) // before d.Close
	p := d.dial(t).hello()
	if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
		t.Fatal(err)
	}
	const questions = 8
	for i := range uint64(questions) {
		p.send(wire.WorkerFate, 100+i, &wire.Number{N: i})
	}
	if _, err := p.ask(wire.Hurry, nil); err != nil {
		t.Fatalf("behind questions that wait: %v", err)
	}
	release()
	answered := make(map[uint64]string)
	for range questions {
		f, err := p.receive()
		if err != nil || f.Type != wire.WorkerFate|wire.ReplyBit {
			t.Fatalf("%v, %v", f.Type, err)
		}
		var m wire.WorkerFateReply
		if err := m.Decode(f.Payload); err != nil || !m.Alive {
			t.Fatalf("%+v, %v", m, err)
		}
		answered[f.Request] = m.Text
	}
	for i := range uint64(questions) {
		if want := fmt.Sprintf("worker %d of session 1", i); answered[100+i] != want {
			t.Errorf("question %d was answered with %q, want %q", i, answered[100+i], want)
		}
	}
}

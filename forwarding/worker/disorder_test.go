//go:build cgo

package worker

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"tendril/forwarding/clwire"
	"tendril/forwarding/worker/engine"
)

// ordinary is a program's stream, of one record of each sort: over the objects of fuzzSession it adds 1, by way of a
// kernel, to what was written to the first 16 words of buffer 3, and copies them behind it.
func ordinary() []clwire.Message {
	const ctx, queue, buf = 1, 2, 3
	text := []byte("kernel void add(global int *v, int by) { v[get_global_id(0)] += by; }")
	on := func(event uint64, wait ...uint64) clwire.Cmd {
		return clwire.Cmd{Queue: queue, Event: event, Wait: wait}
	}
	bytes := make([]byte, 64)
	for i := range bytes {
		bytes[i] = byte(i)
	}
	graph := clwire.AppendRecorded(nil, &clwire.Copy{Src: buf, Dst: buf, DstOffset: 64, Size: 64})
	return []clwire.Message{
		&clwire.Blob{ID: 20, Total: uint64(len(text)), Data: text[:10]},
		&clwire.Blob{ID: 20, Offset: 10, Total: uint64(len(text)), Data: text[10:]},
		&clwire.CreateProgram{ID: 21, Context: ctx, Kind: clwire.ProgramSource, Blob: 20},
		&clwire.BuildProgram{Program: 21},
		&clwire.CreateKernel{ID: 22, Program: 21, Name: "add"},
		&clwire.SetArg{Kernel: 22, Arg: argInt(1, 1)},
		&clwire.UserEvent{ID: 30},
		&clwire.WriteInline{Cmd: on(31, 30), Buffer: buf, Data: bytes},
		&clwire.Marker{Cmd: on(32, 31)},
		&clwire.Watch{Event: 32, Level: 0},
		&clwire.SetUserEvent{ID: 30},
		run1(on(33), 22, 16, argMem(0, buf)),
		&clwire.Host{Cmd: on(34, 33), Op: 40},
		&clwire.HostDone{Op: 40},
		&clwire.Blob{ID: 23, Total: uint64(len(graph)), Data: graph},
		&clwire.Graph{ID: 24, Blob: 23},
		&clwire.Replay{Cmd: on(35, 34), Graph: 24},
		&clwire.CreateBuffer{ID: 25, Context: ctx, Flags: 1, Size: 64, Parent: buf, Offset: 128},
		&clwire.BulkWrite{Cmd: on(36), Op: 41, Buffer: 25, Shape: clwire.Shape{Size: 16}},
		clwire.NewBulkBytes(41, 0, bytes[:16]),
		&clwire.Fill{Cmd: on(0), Buffer: 25, Offset: 16, Size: 8, Pattern: []byte{7}},
		&clwire.Finish{Queue: queue},
		&clwire.Release{ID: 36},
		&clwire.Release{ID: 25},
		&clwire.Release{ID: 24},
		&clwire.Release{ID: 22},
	}
}

// framed is a message as it comes.
type framed struct {
	header  clwire.Header
	payload []byte
}

// play has a session take records, as its reader does: the first that it refuses is the last.
func play(s *session, records []framed) error {
	for _, r := range records {
		if err := s.execute(r.header, r.payload); err != nil {
			return fmt.Errorf("%v: %w", r.header.Type, err)
		}
		if r.header.Type == clwire.TypeBuildProgram {
			s.work.Wait() // a client waits for the reply
		}
	}
	return nil
}

// TestDisorderedRecords: a stream of which each record in turn comes twice, is left out, comes late, early or cut, and
// all of it twice, ends with an error or goes on: nothing panics, nothing hangs (what it leaves is joined), and no byte
// is written that no record names.
func TestDisorderedRecords(t *testing.T) {
	var stream []framed
	for i, m := range ordinary() {
		h := clwire.Header{Type: m.Type()}
		switch h.Type {
		case clwire.TypeBuildProgram, clwire.TypeFinish:
			h.Request = uint64(i + 1)
		}
		stream = append(stream, framed{h, m.Append(nil)})
	}
	refused, taken := 0, 0
	try := func(name string, records []framed) {
		t.Run(name, func(t *testing.T) {
			s, stop := fuzzSession(t)
			seg := s.segments[9]
			look := func(seg *segment) { // once nothing of the session holds it
				if i := slices.IndexFunc(seg.mem[256:], func(b byte) bool { return b != 0 }); i >= 0 {
					t.Errorf("byte %d beyond the buffer was written", i)
				}
			}
			held := true
			seg.gone = func(seg *segment) {
				held = false
				look(seg)
				s.unmap(seg)
			}
			defer func() {
				stop()
				if held { // by commands that never ended, as until a worker's process ends
					look(seg)
					seg.unmap()
				}
			}()
			switch err := play(s, records); {
			case err == nil:
				taken++
			case errors.Is(err, errRecord), errors.Is(err, clwire.ErrRecord), errors.Is(err, engine.ErrNoEvent),
				errors.Is(err, engine.ErrNotUser), errors.Is(err, engine.ErrTaken):
				refused++
			default:
				t.Errorf("refused for another reason than the stream: %v", err)
			}
		})
	}
	without := func(i int) []framed { return append(append([]framed(nil), stream[:i]...), stream[i+1:]...) }
	with := func(i int, r ...framed) []framed {
		return append(append(append([]framed(nil), stream[:i]...), r...), stream[i:]...)
	}
	if try("in order", stream); taken != 1 {
		t.Fatal("the stream itself is refused")
	}
	for i, r := range stream {
		at := fmt.Sprintf("%d %v ", i, r.header.Type)
		if i%2 == 0 {
			try(at+"twice", with(i, r))
		} else {
			try(at+"again at the end", with(len(stream), r))
		}
		try(at+"left out", without(i))
		cut := r
		cut.payload = r.payload[:len(r.payload)/2]
		try(at+"cut", append(with(i, cut)[:i+1:i+1], stream[i+1:]...))
		if i > 0 {
			swapped := append([]framed(nil), stream...)
			swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
			try(at+"early", swapped)
		}
	}
	try("all of it twice", append(append([]framed(nil), stream...), stream...))
	if refused < len(stream) || taken < len(stream) {
		t.Errorf("of the streams %d were refused and %d taken", refused, taken)
	}
}

package clwire

import (
	"bytes"
	"errors"
	"testing"
)

// TestRecorded: a command comes back as it was recorded, with the Cmd of its turn; nothing else is taken.
func TestRecorded(t *testing.T) {
	fill := &Fill{Buffer: 3, Offset: 16, Size: 64, Pattern: []byte{0xde, 0xad}}
	launch := &NDRange{Kernel: 6, Dims: 1, Global: [3]uint64{64},
		Args: []Arg{{Index: 0, Kind: ArgBytes, Data: []byte{1, 2, 3}}}}
	graph := AppendRecorded(AppendRecorded(nil, fill), launch)
	var got []Type
	n, err := Recorded(graph, func(typ Type, payload []byte) error {
		got = append(got, typ)
		m, turn := Message(fill), cmd
		if typ == TypeNDRange {
			m = launch
		}
		fill.Cmd, launch.Cmd = turn, turn
		if now := Replayed(nil, &turn, payload); !bytes.Equal(now, m.Append(nil)) {
			t.Errorf("%v: % x", typ, now)
		}
		return nil
	})
	if n != 2 || err != nil || len(got) != 2 || got[0] != TypeFill || got[1] != TypeNDRange {
		t.Errorf("%d, %v: %v", n, err, got)
	}
	for cut := 1; cut < len(graph); cut++ {
		if n, err := Recorded(graph[:cut], func(Type, []byte) error { return nil }); err == nil && n == 2 ||
			err != nil && !errors.Is(err, ErrRecord) {
			t.Fatalf("cut at %d: %d, %v", cut, n, err)
		}
	}
	for _, m := range []Message{&Marker{}, &WriteInline{}, &Replay{Graph: 1}, &Host{}} {
		if _, err := Recorded(AppendRecorded(nil, m),
			func(Type, []byte) error { return nil }); !errors.Is(err, ErrRecord) {
			t.Errorf("%v in a graph: %v", m.Type(), err)
		}
	}
}

// FuzzRecorded: any bytes are a graph or none.
func FuzzRecorded(f *testing.F) {
	f.Add(AppendRecorded(nil, &Copy{Src: 1, Dst: 2, Size: 3}))
	f.Add([]byte{12, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, graph []byte) {
		total := 0
		n, err := Recorded(graph, func(_ Type, payload []byte) error {
			total += 6 + len(payload)
			return nil
		})
		if err == nil && total != len(graph) {
			t.Fatalf("%d commands of %d bytes in %d", n, total, len(graph))
		}
	})
}

//go:build cgo

package worker

import (
	"fmt"

	"tendril/forwarding/clwire"
	"tendril/forwarding/worker/engine"
)

// graph is a command buffer's contents: commands as they came, which a replay carries out as if they came again. The
// objects that they name are looked up then, so that the client holds what it needs.
type graph struct {
	commands []byte // immutable
	n        int
}

func (s *session) defineGraph(m *clwire.Graph) error {
	commands, err := s.takeBlob(m.Blob)
	if err != nil {
		return err
	}
	old, there := s.objects[m.ID].(*graph)
	if !there {
		if err := s.fresh(m.ID); err != nil {
			return err
		}
		old = &graph{}
	}
	total := s.graphBytes - len(old.commands) + len(commands)
	if total > clwire.MaxGraphBytes {
		return fmt.Errorf("%w: graphs of %d bytes, the limit is %d", errRecord, total, clwire.MaxGraphBytes)
	}
	n, err := clwire.Recorded(commands, func(clwire.Type, []byte) error { return nil })
	if err != nil {
		return err
	}
	s.graphBytes, s.objects[m.ID] = total, &graph{commands: commands, n: n}
	return nil
}

// replay enqueues a graph: an in-order queue keeps the commands in order by itself, and each has the replay's wait
// list, so that a failure there fails them all; out of order a chain of events does both.
func (s *session) replay(h clwire.Header, m *clwire.Replay) error {
	g, err := lookup[*graph](s, m.Graph)
	if err != nil {
		return err
	}
	if m.First != 0 && m.First+uint64(g.n) < m.First {
		return fmt.Errorf("%w: events from %d on", errRecord, m.First)
	}
	cmd := clwire.Cmd{Queue: m.Queue, Wait: m.Wait}
	next := m.First
	if _, err := clwire.Recorded(g.commands, func(t clwire.Type, payload []byte) error {
		cmd.Event = next
		s.scratch.replay = clwire.Replayed(s.scratch.replay[:0], &cmd, payload)
		if err := s.execute(clwire.Header{Length: uint32(len(s.scratch.replay)), Type: t},
			s.scratch.replay); err != nil {
			return err
		}
		if next != 0 {
			cmd.Wait = []uint64{next}
			next++
		}
		return nil
	}); err != nil {
		return err
	}
	cmd.Event = m.Event
	if err := s.enqueue(h, engine.KindMarker, &cmd, nil, nil, 0); err != nil {
		return err
	}
	for id := m.First; id < next; id++ {
		s.engine.ReleaseEvent(id)
	}
	return nil
}

package daemon

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"

	"tendril/cluster/fsm"
	"tendril/cluster/raftnode"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// aloneIn is a membership of a cluster of one that has nothing but its metadata.
func aloneIn(t *testing.T) *membership {
	t.Helper()
	id := fsm.UUID(object.NewID())
	n, err := raftnode.Open(t.Context(), raftnode.Options{Dir: t.TempDir(), ID: id.String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	m := &membership{raft: n, node: id, registered: make(chan struct{})}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// register puts the membership's own node into the metadata.
func (m *membership) register(t *testing.T) {
	t.Helper()
	node := fsm.Node{ID: m.node, Name: "a", Incarnation: fsm.UUID(object.NewID())}
	if _, err := m.raft.Propose(t.Context(), fsm.UUID(object.NewID()), &fsm.PutNode{Node: node}); err != nil {
		t.Fatal(err)
	}
	close(m.registered)
}

// TestWaitBesideAMove: who begins to wait for the metadata while the node moves to another cluster waits for that
// one's. The one of before has woken who waited, and wakes nobody any more.
func TestWaitBesideAMove(t *testing.T) {
	before, next := aloneIn(t), aloneIn(t)
	x := &current{}
	x.Store(before)
	moved := false
	there, stop := raftNow{x}.When(func(s *fsm.State) bool {
		if !moved {
			moved = true
			x.Store(next)
		}
		return s.NodeChanges() > 0
	})
	defer stop()
	next.register(t)
	select {
	case <-there:
	default:
		t.Error("who waits was not woken by the cluster that the node is in")
	}
}

// onWarning is a hook of a log that calls what it is, once for each warning.
type onWarning func()

func (onWarning) Levels() []logrus.Level { return []logrus.Level{logrus.WarnLevel} }

func (f onWarning) Fire(*logrus.Entry) error {
	f()
	return nil
}

// TestChangeWhileNothingIsNoted: a node that could not note that it has heard from its cluster tries again with the
// next change of the metadata, also with one that comes while it finds out.
func TestChangeWhileNothingIsNoted(t *testing.T) {
	m := aloneIn(t)
	m.register(t)
	m.joining.Store(true)
	folder := filepath.Join(t.TempDir(), "later")
	m.book.path = filepath.Join(folder, "book")
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.AddHook(onWarning(func() {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Error(err)
		}
		change := &fsm.SetPolicy{Policy: fsm.Policy{Key: "other", Value: []byte("{}")}}
		if _, err := m.raft.Propose(context.Background(), fsm.UUID(object.NewID()), change); err != nil {
			t.Error(err)
		}
	}))
	d := &Daemon{log: log, cfg: Config{StateDir: t.TempDir()}}
	m.running.Go(func() { d.follow(m) })
	defer m.running.Wait()
	defer m.cancel()
	await.Until(t, "the node notes that it has heard from its cluster", func() bool { return !m.joining.Load() })
}

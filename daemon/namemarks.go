package daemon

import (
	"context"
	"sync"

	"tendril/cluster/fsm"
)

// nameMark is how far the changes of published names were told: so many of a state's.
type nameMark struct {
	state *fsm.State
	count uint64
}

// advance gives the changes of published names behind the mark, and moves it there. Tenants that missed some of theirs,
// since no more are remembered, are in missed; all: every one may have.
func (m *nameMark) advance(view func(func(*fsm.State))) (list []fsm.NameChange, missed []string, all bool) {
	view(func(s *fsm.State) {
		same := s == m.state // else it came with a snapshot, or the node has joined another cluster
		list, m.count, missed, all = s.NameChanges(m.count)
		if m.state = s; !same {
			list, missed, all = nil, nil, true
		}
	})
	return list, missed, all
}

// nameTeller tells those who watch objects which names are published and unpublished, at whichever node. Nothing of it
// runs while nobody watches. Its mutex comes before the metadata's and the store's.
type nameTeller struct {
	mu    sync.Mutex
	users int
	mark  nameMark // how far was told
	stop  context.CancelFunc
}

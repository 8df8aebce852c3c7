package store

import (
	"context"
	"fmt"
	"sort"

	"tendril/store/object"
)

// Follower hears of some objects' end: it knows every one that goes, however late it asks. Made by Store.Follow.
type Follower struct {
	s    *Store
	wake chan struct{} // capacity 1
	// Guarded by Store.mu.
	ids  map[object.ID]struct{}
	gone []object.ID
}

// Follow begins with no object. The caller must Close.
func (s *Store) Follow() *Follower {
	return &Follower{s: s, wake: make(chan struct{}, 1), ids: make(map[object.ID]struct{})}
}

// Close ends following.
func (f *Follower) Close() {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	for id := range f.ids {
		f.leave(id)
	}
}

// leave stops following an object. mu is held.
func (f *Follower) leave(id object.ID) {
	delete(f.ids, id)
	if delete(f.s.followers[id], f); len(f.s.followers[id]) == 0 {
		delete(f.s.followers, id)
	}
}

// Add follows an object from now on; false where it is gone already, or not sealed.
func (f *Follower) Add(id object.ID) bool {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	e := f.s.objects[id]
	if e == nil || e.state == object.Open {
		return false
	}
	f.ids[id] = struct{}{}
	if f.s.followers[id] == nil {
		f.s.followers[id] = make(map[*Follower]struct{}, 1)
	}
	f.s.followers[id][f] = struct{}{}
	return true
}

// Has reports whether an object is followed: false also for one that went.
func (f *Follower) Has(id object.ID) bool {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	_, has := f.ids[id]
	return has
}

// Next waits for followed objects that are out of the table, or ctx's end. They are followed no longer.
func (f *Follower) Next(ctx context.Context) ([]object.ID, error) {
	for {
		f.s.mu.Lock()
		gone := f.gone
		f.gone = nil
		f.s.mu.Unlock()
		if len(gone) > 0 {
			return gone, nil
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: following: %w", object.ErrTimeout, ctx.Err())
		}
	}
}

// tellFollowers says that an object is going. It never blocks. mu is held.
func (s *Store) tellFollowers(id object.ID) {
	for f := range s.followers[id] {
		f.leave(id)
		f.gone = append(f.gone, id)
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// SegmentStatus is one segment as inspection shows it.
type SegmentStatus struct {
	ID      uint64
	Tenant  string
	Bytes   uint64 // charged
	Objects int    // that lie in it; a session's memory counts as none
	Used    uint64 // bytes of those objects
	Readers int    // connections that have its descriptor, its writer among them
	Sealed  bool   // for readers
	Session bool   // a session's memory
	Idle    bool   // empty, kept for its writer
	Leaving bool   // of no use, but some connection has not let go
}

// Segments describes those of one tenant, or with "" all, by number.
func (s *Store) Segments(tenant string) []SegmentStatus {
	s.mu.Lock()
	list := make([]SegmentStatus, 0, len(s.segments))
	steps := 0
	for _, g := range s.segments {
		if tenant == "" || g.tenant.name == tenant {
			list = append(list, g.status())
		}
		s.breathe(&steps)
	}
	s.unlock()
	sort.Slice(list, func(i, j int) bool { return list[i].ID < list[j].ID })
	return list
}

// status describes a segment. mu is held.
func (g *segmentState) status() SegmentStatus {
	x := SegmentStatus{
		ID: g.id, Tenant: g.tenant.name, Bytes: g.bytes, Readers: len(g.seen), Sealed: g.sealed, Session: g.session,
		Idle: g.idle, Leaving: g.mem == nil,
		Objects: g.live, Used: g.used,
	}
	if g.session {
		x.Objects = 0
	}
	return x
}

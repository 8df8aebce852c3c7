package fsm

// maxNameChanges bounds what a State remembers of published names that came and went.
const maxNameChanges = 1024

// NameChange is a name that was published, or is published no longer.
type NameChange struct {
	Published bool // else it is no longer
	Tenant    string
	Name      string
	ID        UUID // the object's
	SizeBytes uint64
	At        int64 // Unix ns
}

// nameChanges are the last ones, in this State's life: nothing of them is in a snapshot.
type nameChanges struct {
	count uint64 // of all so far
	last  []NameChange
}

// noteName remembers that an object's name is published, or is no longer.
func (s *State) noteName(o *Object, published bool) {
	c := NameChange{published, o.Tenant, o.Name, o.ID, o.SizeBytes, s.now}
	x := &s.nameChanges
	if len(x.last) < maxNameChanges {
		x.last = append(x.last, c)
	} else {
		x.last[x.count%maxNameChanges] = c
	}
	x.count++
}

// NameChanges gives what came behind the first n changes of published names in this State's life, in order, and how
// many there are now. whole is false where some of them are remembered no longer.
func (s *State) NameChanges(n uint64) (list []NameChange, now uint64, whole bool) {
	x := &s.nameChanges
	first := x.count - uint64(len(x.last))
	for i := max(n, first); i < x.count; i++ {
		list = append(list, x.last[i%maxNameChanges])
	}
	return list, x.count, n >= first && n <= x.count
}

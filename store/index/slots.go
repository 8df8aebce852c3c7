package index

import (
	"sync/atomic"

	"tendril/store/segment"
)

// Slots is one connection's slots as the daemon sees them: memory that the client writes as it likes. Not safe for
// concurrent use.
type Slots struct {
	words []atomic.Uint64
	told  uint64 // place in the ring up to which Recent has told

	memory  *segment.Memory
	mapping *segment.Mapping
}

// NewSlots makes a connection's slots. The caller must Close. Errors: ErrFull, ErrInternal.
func NewSlots(sys segment.System) (*Slots, error) {
	m, mapping, err := newMemory(sys, SlotsBytes, true)
	if err != nil {
		return nil, err
	}
	return &Slots{words: wordsOf(mapping.Bytes()), memory: m, mapping: mapping}, nil
}

// Dup gives a descriptor of the memory, writable; the caller owns it.
func (s *Slots) Dup() (int, error) { return s.memory.Dup() }

// Memory gives the memory, which stays the Slots'.
func (s *Slots) Memory() *segment.Memory { return s.memory }

// End tells the client that its slots count no longer: it takes no reference after it has seen that. It must precede
// the first look that leaves these slots out.
func (s *Slots) End() { s.words[slotsEnded].Store(1) }

// Leave tells the client that one more segment is of no use to it: a client that asks nothing over the socket meanwhile
// would not come to Sweep by itself.
func (s *Slots) Leave() { s.words[slotsLeaving].Add(1) }

// Close gives the daemon's mapping and descriptor up.
func (s *Slots) Close() {
	if s.memory != nil {
		s.mapping.Unmap() // fails only for a mapping that is none
		s.memory.Close()
	}
}

// Used gives how many slots are worth a look: what the client says, within bounds. One that says less than it uses
// loses what it holds, nobody else does.
func (s *Slots) Used() int { return int(min(s.words[slotsUsed].Load(), MaxSlots)) }

// Held appends the words in the slots to list. It must follow Table.Retire of whatever is then looked for in the list.
func (s *Slots) Held(list []Word) []Word {
	used := s.Used()
	for i := range used {
		if w := s.words[slotsFirst+i].Load(); w != 0 {
			list = append(list, Word(w))
		}
	}
	return list
}

// Recent calls f with the references that were taken since the last call, the oldest first, as far as the ring
// remembers them.
func (s *Slots) Recent(f func(Word)) {
	at := s.words[slotsAt].Load()
	from := s.told
	if at-from > RingEntries { // also where a client turned it back
		from = at - RingEntries
	}
	s.told = at
	for ; from != at; from++ {
		f(Word(s.words[slotsRing+from%RingEntries].Load()))
	}
}

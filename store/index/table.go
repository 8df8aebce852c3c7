package index

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"tendril/store/object"
	"tendril/store/segment"
)

// Level is one piece of a table's memory in the daemon, which alone can write it.
type Level struct {
	number int
	words  []atomic.Uint64

	memory  *segment.Memory // nil in tests that share no memory
	mapping *segment.Mapping
}

// NewLevel makes the memory of a level, populated and sealed: whoever gets its descriptor can read it only. It takes
// some 0.3 ms a MiB. The caller must Close it, or give it to a Table. Errors: ErrFull, ErrInternal.
func NewLevel(sys segment.System, number int) (*Level, error) {
	m, mapping, err := newMemory(sys, LevelBytes(number), true)
	if err != nil {
		return nil, err
	}
	if err := m.SealForReaders(); err != nil {
		mapping.Unmap()
		m.Close()
		return nil, err
	}
	l := &Level{number: number, words: wordsOf(mapping.Bytes()), memory: m, mapping: mapping}
	l.begin()
	return l, nil
}

// newMemory makes populated memory of a size that stays, and its mapping here.
func newMemory(sys segment.System, bytes uint64, writable bool) (*segment.Memory, *segment.Mapping, error) {
	m, err := segment.Create(sys, bytes)
	if err != nil {
		return nil, nil, err
	}
	if err = m.Populate(0, m.Bytes(), nil); err == nil {
		err = m.Fix()
	}
	var mapping *segment.Mapping
	if err == nil {
		mapping, err = m.Map(writable)
	}
	if err != nil {
		m.Close()
		return nil, nil, err
	}
	return m, mapping, nil
}

func (l *Level) begin() {
	l.words[headerLevel].Store(uint64(l.number))
	l.words[headerBuckets].Store(uint64(buckets(l.number)))
	l.words[headerRecords].Store(uint64(records(l.number)))
	l.words[headerMagic].Store(Magic)
}

// Bytes gives the size of the memory.
func (l *Level) Bytes() uint64 { return uint64(len(l.words)) * 8 }

// Memory gives the memory, which stays the Level's.
func (l *Level) Memory() *segment.Memory { return l.memory }

// Dup gives a descriptor of the memory, for reading; the caller owns it.
func (l *Level) Dup() (int, error) { return l.memory.Dup() }

// Close gives the daemon's mapping and descriptor up. Clients keep theirs.
func (l *Level) Close() {
	if l.memory != nil {
		l.mapping.Unmap() // fails only for a mapping that is none
		l.memory.Close()
	}
}

func bucketAt(n int) int        { return headerWords + n*bucketWords }
func recordAt(level, n int) int { return headerWords + buckets(level)*bucketWords + n*recordWords }

// Table is the daemon's side of a tenant's index; O is what its owner keeps beside each record. Not safe for concurrent
// use; readers in other processes are another matter.
type Table[O any] struct {
	levels []*tableLevel[O]
}

type tableLevel[O any] struct {
	*Level
	lives []uint64 // generation that each record had last
	owner []O
	free  []uint32 // records that may be used again; those from len(lives) on were never used
	live  int      // records in use, or retired and not yet free
}

// Add gives a table its next level, which the table owns then.
func (t *Table[O]) Add(l *Level) error {
	if l.number != len(t.levels) {
		return fmt.Errorf("%w: level %d for a table of %d", object.ErrInternal, l.number, len(t.levels))
	}
	t.levels = append(t.levels, &tableLevel[O]{Level: l})
	t.levels[0].words[headerLevels].Store(uint64(len(t.levels)))
	return nil
}

// Levels gives how many there are.
func (t *Table[O]) Levels() int { return len(t.levels) }

// Level gives one of them.
func (t *Table[O]) Level(n int) *Level { return t.levels[n].Level }

// Live gives the number of records that are not free.
func (t *Table[O]) Live() (n int) {
	for _, l := range t.levels {
		n += l.live
	}
	return n
}

// Short reports whether the table wants another level soon.
func (t *Table[O]) Short() bool {
	last := t.levels[len(t.levels)-1]
	return len(t.levels) < MaxLevels && last.live > records(last.number)/4*3
}

// Insert makes an object findable and gives the word that stands for this record in this life; false where there is no
// room. A name that finds no room, or none beside the metadata, is left out.
func (t *Table[O]) Insert(r *Record, o O) (Word, bool) {
	for _, l := range t.levels {
		if w, ok := l.insert(r, o); ok {
			return w, true
		}
	}
	return 0, false
}

func (l *tableLevel[O]) insert(r *Record, o O) (Word, bool) {
	if len(l.free) == 0 && len(l.lives) == records(l.number) || len(r.Meta) > MaxTextBytes {
		return 0, false
	}
	byID, name := ByID(r.ID), r.Name
	idAt := l.placeFor(byID, -1)
	if idAt < 0 {
		return 0, false
	}
	nameAt := -1
	if name != "" && r.Fits() {
		nameAt = l.placeFor(ByName(name), idAt)
	}
	if nameAt < 0 {
		name = ""
	}
	n := l.take(o)
	w := makeWord(l.lives[n], l.number, n)
	l.fill(n, r, name)
	l.words[recordAt(l.number, n)+recordWord].Store(uint64(w)) // only now: the fields are whole
	l.enter(idAt, byID, n)
	if nameAt >= 0 {
		l.enter(nameAt, ByName(name), n)
	}
	return w, true
}

// take begins a record's next life.
func (l *tableLevel[O]) take(o O) int {
	l.live++
	if last := len(l.free) - 1; last >= 0 {
		n := int(l.free[last])
		l.free = l.free[:last]
		l.lives[n]++
		l.owner[n] = o
		return n
	}
	l.lives, l.owner = append(l.lives, 1), append(l.owner, o)
	return len(l.lives) - 1
}

// placeFor finds an empty place for a key, other than the one at not: in its first bucket or, where that is full, in
// its second one; −1 where both are.
func (l *tableLevel[O]) placeFor(k Key, not int) int {
	a, b, _ := k.places(l.number)
	for _, bucket := range [2]int{a, b} {
		for at := bucketAt(bucket) + bucketEntries; at < bucketAt(bucket+1); at++ {
			if at != not && l.words[at].Load() == 0 {
				return at
			}
		}
	}
	return -1
}

// enter writes a key's entry at the place that placeFor found. Where that is in the second bucket the first one says so
// before.
func (l *tableLevel[O]) enter(at int, k Key, n int) {
	a, _, tag := k.places(l.number)
	if at < bucketAt(a) || at >= bucketAt(a+1) {
		l.words[bucketAt(a)+bucketAway].Add(1)
	}
	l.words[at].Store(tag | uint64(n))
}

// fill writes a record that no reader takes for valid.
func (l *tableLevel[O]) fill(n int, r *Record, name string) {
	at := recordAt(l.number, n)
	id := ByID(r.ID).id
	l.words[at+recordID].Store(id[0])
	l.words[at+recordID+1].Store(id[1])
	l.words[at+recordSegment].Store(r.Segment)
	l.words[at+recordOffset].Store(r.Offset)
	l.words[at+recordSize].Store(r.Bytes)
	l.words[at+recordKind].Store(uint64(r.Class) | uint64(len(name))<<16 | uint64(len(r.Meta))<<32)
	var text [MaxTextBytes]byte
	used := copy(text[:], name)
	used += copy(text[used:], r.Meta)
	for i := 0; 8*i < used; i++ {
		l.words[at+recordText+i].Store(binary.LittleEndian.Uint64(text[8*i:]))
	}
}

// Retire makes a record invalid: no client takes a reference to it from now on, which is what a later look at the slots
// relies on. The record stays taken until Free. w must be of Insert and not retired before.
func (t *Table[O]) Retire(w Word) {
	l := t.levels[w.level()]
	at := recordAt(l.number, w.record())
	l.words[at+recordWord].Store(0)
	f, ok := l.read(w.record())
	if !ok {
		panic("index: a record that the daemon wrote does not read") // a fault of this package, never of a peer
	}
	l.leave(ByID(f.ID()), w.record())
	if name := f.Name(); name != "" {
		l.leave(ByName(name), w.record())
	}
}

// leave takes a record's entry out of a key's buckets.
func (l *tableLevel[O]) leave(k Key, n int) {
	a, b, tag := k.places(l.number)
	for _, bucket := range [2]int{a, b} {
		for at := bucketAt(bucket) + bucketEntries; at < bucketAt(bucket+1); at++ {
			if l.words[at].Load() != tag|uint64(n) {
				continue
			}
			l.words[at].Store(0)
			if bucket != a {
				l.words[bucketAt(a)+bucketAway].Add(^uint64(0))
			}
			return
		}
	}
}

// Free gives a retired record back for another life: no slot has w any more.
func (t *Table[O]) Free(w Word) {
	l, n := t.levels[w.level()], w.record()
	var none O
	l.owner[n] = none
	l.live--
	if l.lives[n] < maxGeneration {
		l.free = append(l.free, uint32(n))
	}
}

// Owner gives what was kept beside the record that a client's word names; false where there is no such record in that
// life, or it was retired. The word may be anything.
func (t *Table[O]) Owner(w Word) (o O, ok bool) {
	if !t.lives(w) {
		return o, false
	}
	l, n := t.levels[w.level()], w.record()
	return l.owner[n], l.words[recordAt(l.number, n)+recordWord].Load() == uint64(w)
}

// LastOwner is Owner also of a record that was retired and is not free yet; the zero O where there is none. The word
// may be anything.
func (t *Table[O]) LastOwner(w Word) (o O) {
	if t.lives(w) {
		o = t.levels[w.level()].owner[w.record()]
	}
	return o
}

// lives reports whether a word names a record in the life that it has, or had last.
func (t *Table[O]) lives(w Word) bool {
	if w.level() >= len(t.levels) {
		return false
	}
	l, n := t.levels[w.level()], w.record()
	return n < len(l.lives) && l.lives[n] == w.generation()
}

// Close gives all memory up.
func (t *Table[O]) Close() {
	for _, l := range t.levels {
		l.Close()
	}
	t.levels = nil
}

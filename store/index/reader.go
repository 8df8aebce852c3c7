package index

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
)

// Reader is the client's view of its tenant's table. Safe for concurrent use, but Add and Close.
type Reader struct {
	levels   [MaxLevels]*Level
	count    atomic.Int32
	mappings []*segment.Mapping
}

// Add takes the mapping of the table's next level over, also where it fails: memory that is no such level is
// ErrProtocol. Calls of Add come one after another; finds may be under way.
func (r *Reader) Add(m *segment.Mapping) error {
	err := r.add(wordsOf(m.Bytes()))
	if err != nil {
		m.Unmap() // fails only for a mapping that is none
		return err
	}
	r.mappings = append(r.mappings, m)
	return nil
}

func (r *Reader) add(words []atomic.Uint64) error {
	n := int(r.count.Load())
	if n == MaxLevels || uint64(len(words))*8 < LevelBytes(min(n, MaxLevels-1)) {
		return fmt.Errorf("%w: level %d of the index in %d bytes", object.ErrProtocol, n, len(words)*8)
	}
	for i, want := range map[int]uint64{headerMagic: Magic, headerLevel: uint64(n), headerBuckets: uint64(buckets(n)),
		headerRecords: uint64(records(n))} {
		if have := words[i].Load(); have != want {
			return fmt.Errorf("%w: level %d of the index: header word %d is %#x, want %#x", object.ErrProtocol, n,
				i, have, want)
		}
	}
	r.levels[n] = &Level{number: n, words: words}
	r.count.Store(int32(n) + 1)
	return nil
}

// Levels gives how many levels the reader has.
func (r *Reader) Levels() int { return int(r.count.Load()) }

// Behind reports whether the daemon has a level that the reader does not have.
func (r *Reader) Behind() bool {
	n := r.count.Load()
	return n > 0 && n < MaxLevels && r.levels[0].words[headerLevels].Load() > uint64(n)
}

// Close unmaps everything. No other call may be under way or follow.
func (r *Reader) Close() {
	for _, m := range r.mappings {
		m.Unmap() // fails only for a mapping that is none
	}
	r.mappings = nil
	r.count.Store(0)
}

// Found is a record as it was read: true only if Valid says so once its word is in a slot.
type Found struct {
	Word          Word
	Segment       uint64 // 0: an empty object
	Offset, Bytes uint64
	Class         object.Class

	id        [2]uint64
	nameBytes int
	metaBytes int
	text      [textWords]uint64
}

// ID gives the object's id.
func (f *Found) ID() (id object.ID) {
	binary.LittleEndian.PutUint64(id[:8], f.id[0])
	binary.LittleEndian.PutUint64(id[8:], f.id[1])
	return id
}

// Name gives the object's name, "" where it has none or one that is too long for the index.
func (f *Found) Name() string { return string(f.part(0, f.nameBytes)) }

// Meta gives a copy of the object's metadata; nil for none.
func (f *Found) Meta() []byte { return f.part(f.nameBytes, f.metaBytes) }

func (f *Found) part(from, n int) []byte {
	if n == 0 {
		return nil
	}
	var text [MaxTextBytes]byte
	for i := from / 8; 8*i < from+n; i++ {
		binary.LittleEndian.PutUint64(text[8*i:], f.text[i])
	}
	return append(make([]byte, 0, n), text[from:from+n]...)
}

// hasName is Name() == name without its memory.
func (f *Found) hasName(name string) bool {
	if f.nameBytes != len(name) {
		return false
	}
	for i := range len(name) {
		if byte(f.text[i/8]>>(i%8*8)) != name[i] {
			return false
		}
	}
	return true
}

// Find looks for a key and gives what it read; false where the index does not have it.
func (r *Reader) Find(k Key, f *Found) bool {
	for n := int(r.count.Load()) - 1; n >= 0; n-- {
		l := r.levels[n]
		a, b, tag := k.places(n)
		if l.findIn(a, tag, k, f) || l.words[bucketAt(a)+bucketAway].Load() > 0 && l.findIn(b, tag, k, f) {
			return true
		}
	}
	return false
}

func (l *Level) findIn(bucket int, tag uint64, k Key, f *Found) bool {
	for at := bucketAt(bucket) + bucketEntries; at < bucketAt(bucket+1); at++ {
		e := l.words[at].Load()
		if e&^entryRecordMask != tag {
			continue
		}
		n := int(e & entryRecordMask)
		if n >= records(l.number) || !l.readInto(n, f) || f.Word == 0 {
			continue
		}
		if k.name == "" && f.id == k.id || k.name != "" && f.hasName(k.name) {
			return true
		}
	}
	return false
}

// readInto copies a record; false where its lengths are none, which a reader sees while it is written again.
func (l *Level) readInto(n int, f *Found) bool {
	w := l.words[recordAt(l.number, n):][:recordWords]
	f.Word = Word(w[recordWord].Load())
	f.id = [2]uint64{w[recordID].Load(), w[recordID+1].Load()}
	f.Segment, f.Offset, f.Bytes = w[recordSegment].Load(), w[recordOffset].Load(), w[recordSize].Load()
	kind := w[recordKind].Load()
	f.Class, f.nameBytes, f.metaBytes = object.Class(kind), int(kind>>16&0xffff), int(kind>>32&0xffff)
	used := f.nameBytes + f.metaBytes
	if used > MaxTextBytes {
		return false
	}
	for i := 0; 8*i < used; i++ {
		f.text[i] = w[recordText+i].Load()
	}
	return true
}

func (l *Level) read(n int) (f Found, ok bool) {
	ok = l.readInto(n, &f)
	return f, ok
}

// Valid reports whether what was found is still so: if its word stood in a slot before the call, the object stays until
// the slot is cleared.
func (r *Reader) Valid(w Word) bool {
	l := r.levels[w.level()]
	return l != nil && w.record() < records(l.number) &&
		l.words[recordAt(l.number, w.record())+recordWord].Load() == uint64(w)
}

// keepFromChildren is MADV_DONTFORK: a forked child must not write its parent's slots.
func keepFromChildren(m *segment.Mapping) error { return unix.Madvise(m.Bytes(), unix.MADV_DONTFORK) }

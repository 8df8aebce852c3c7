// Package index is the layout of the index in shared memory, and both of its sides: the daemon's Table and Slots, the
// client's Reader and Pins. With it a process finds, references and releases an object without a system call
// (PROTOCOL.md says why that is safe; model_test.go explores it). A miss is never an error: whatever the index does
// not answer is asked over the socket.
//
// The client trusts the daemon's words as far as their bounds, which it checks. The daemon trusts no word of a client's
// slots: it compares them with references that it gave out, and nothing else follows from them.
//
// Locks: none. A Table is its owner's, under one lock of the owner; Reader, Pins and the words themselves are for any
// number of goroutines and processes at once, through atomic operations alone (sequentially consistent, as Go's are:
// what the protocol calls a fence is part of them).
package index

import (
	"encoding/binary"
	"math/bits"

	"tendril/store/object"
)

// Magic begins a level: "TDRLIDX1".
const Magic = 0x3158_4449_4C52_4454

// The layout; all of it is in PROTOCOL.md.
const (
	MaxLevels = 8

	firstRecords = 512 // of level 0; each further level has four times as many, the last one as many as the one before
	headerWords  = 512 // one page
	bucketWords  = 8
	recordWords  = 24
	textWords    = 16
	MaxTextBytes = 8 * textWords // name and metadata of one record together

	bucketAway, bucketEntries = 0, 1 // how many keys that belong here are in their second bucket; then entries

	headerMagic, headerLevel, headerBuckets, headerRecords, headerLevels = 0, 1, 2, 3, 4

	recordWord, recordID, recordSegment, recordOffset, recordSize, recordKind, recordText = 0, 1, 3, 4, 5, 6, 8

	// SlotsBytes is the size of a connection's slots.
	SlotsBytes = 8192
	// RingEntries is how many of the last accesses a connection tells.
	RingEntries = 128
	// MaxSlots is how many objects a connection holds through the index at a time.
	MaxSlots = SlotsBytes/8 - slotsFirst

	slotsUsed, slotsAt, slotsEnded, slotsLeaving, slotsRing, slotsFirst = 0, 1, 2, 3, 8, 8 + RingEntries
)

// Word is a reference: which record, in which of its lives. 0 is none.
//
//	63           24 23   21 20       0
//	| generation   | level | record  |
type Word uint64

const (
	recordBits      = 21
	levelBits       = 3
	generationShift = recordBits + levelBits
	// maxGeneration is a record's last life; after it the record is not used again. Daily use reaches it in 30,000
	// years at one life a second.
	maxGeneration = 1<<(64-generationShift) - 1
)

func makeWord(generation uint64, level, record int) Word {
	return Word(generation<<generationShift | uint64(level)<<recordBits | uint64(record))
}

func (w Word) generation() uint64 { return uint64(w) >> generationShift }
func (w Word) level() int         { return int(w>>recordBits) & (1<<levelBits - 1) }
func (w Word) record() int        { return int(w) & (1<<recordBits - 1) }

// records gives how many a level has; a power of two.
func records(level int) int { return firstRecords << (2 * min(level, MaxLevels-2)) }

// buckets gives how many a level has: 3.5 places a record, for its id and its name.
func buckets(level int) int { return records(level) / 2 }

// LevelBytes gives the size of a level's memory. level < MaxLevels.
func LevelBytes(level int) uint64 {
	return 8 * uint64(headerWords+buckets(level)*bucketWords+records(level)*recordWords)
}

// Key is what is looked for: an object's id or its name.
type Key struct {
	hash uint64
	id   [2]uint64
	name string // "": by id
}

// ByID makes the key of an id.
func ByID(id object.ID) Key {
	k := Key{id: [2]uint64{binary.LittleEndian.Uint64(id[:8]), binary.LittleEndian.Uint64(id[8:])}}
	k.hash = mix(k.id[0] ^ bits.RotateLeft64(k.id[1], 32))
	return k
}

// ByName makes the key of a name; it must not be empty.
func ByName(name string) Key {
	hash := uint64(0xcbf29ce484222325) // FNV-1a
	for i := range len(name) {
		hash = (hash ^ uint64(name[i])) * 0x100000001b3
	}
	return Key{hash: mix(hash), name: name}
}

// mix spreads a hash over all bits (the finalizer of MurmurHash3, public domain).
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// places gives the two buckets of a key in a level, and what its entry there begins with.
//
//	63      24 23  22 21 20       0
//	| tag     | 1 | 0   | record  |
func (k Key) places(level int) (a, b int, tag uint64) {
	mask := uint64(buckets(level) - 1)
	return int(k.hash & mask), int(k.hash >> 20 & mask), k.hash>>24<<24 | entryPresent
}

const (
	entryPresent    = 1 << 23
	entryRecordMask = 1<<recordBits - 1
)

// Record is an object as the index knows it.
type Record struct {
	ID            object.ID
	Name          string // "": none, or too long
	Segment       uint64 // 0: an empty object
	Offset, Bytes uint64
	Class         object.Class
	Meta          []byte
}

// Fits reports whether the index can hold a record; its name may have to go.
func (r *Record) Fits() bool { return len(r.Name)+len(r.Meta) <= MaxTextBytes }

package fsm

import (
	"encoding/binary"
	"iter"
	"maps"
)

// objectShards divides the objects: what a frozen copy still needs is copied in such pieces when it changes.
const objectShards = 4096

// objectTable is the published objects by id. What it holds is never altered: who changes an object puts in another
// one. So freeze costs the same however many there are, and the copy may be read while the table changes. The zero
// value is empty.
type objectTable struct {
	shards [objectShards]map[UUID]*Object
	shared [objectShards]bool // a frozen copy has this map, too
	count  int
}

func shardOf(id UUID) int {
	x := (binary.LittleEndian.Uint64(id[:8]) ^ binary.LittleEndian.Uint64(id[8:])) * 0x9e3779b97f4a7c15
	return int(x >> 52)
}

// get finds an object; nil: there is none.
func (t *objectTable) get(id UUID) *Object { return t.shards[shardOf(id)][id] }

func (t *objectTable) size() int { return t.count }

// own gives the shard of an id for writing.
func (t *objectTable) own(id UUID) map[UUID]*Object {
	i := shardOf(id)
	if t.shared[i] {
		t.shards[i], t.shared[i] = maps.Clone(t.shards[i]), false
	}
	if t.shards[i] == nil {
		t.shards[i] = map[UUID]*Object{}
	}
	return t.shards[i]
}

// put enters an object, or takes another one's place that has the same id.
func (t *objectTable) put(o *Object) {
	shard := t.own(o.ID)
	t.count -= len(shard)
	shard[o.ID] = o
	t.count += len(shard)
}

func (t *objectTable) remove(id UUID) {
	shard := t.own(id)
	t.count -= len(shard)
	delete(shard, id)
	t.count += len(shard)
}

// all gives the objects in no order. Objects may be put and removed meanwhile.
func (t *objectTable) all() iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		for _, shard := range t.shards {
			for _, o := range shard {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// freeze gives the table as it is now, for reading.
func (t *objectTable) freeze() *objectTable {
	for i := range t.shared {
		t.shared[i] = true
	}
	frozen := *t
	return &frozen
}

package handoff

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"tendril/store/object"
	"tendril/store/spill"
)

// A Catalog's objects and references are tables of bytes, for there may be millions, and clients wait. Little-endian;
// str = u16 length and bytes; times in ns since 1970, 0 = none. An object:
//
//	u32 bytes that follow, of which those behind the last field below are for later releases
//	id (16), u8 flags (1 on disk alone, 2 strict, 4 pinned, 8 damaged, 16 kept, 32 of a GPU), u8 class, u64 size,
//	u64 segment (0 = none), u64 offset,
//	u64 created, u64 sealed, u64 bound, u64 expires, u64 left of its time in ns, u32 creator's pid, str tenant,
//	str name, str creator, str meta, u16 labels × (str key, str value), u16 grants × str,
//	u16 members × (str name, id), u32 bytes of sums, the sums, with flag 32 the GPU that it is of (16)
//
// A reference: id (16), u32 count, u64 since.

const (
	flagSpilled = 1
	flagStrict  = 2
	flagPinned  = 4
	flagDamaged = 8
	flagKept    = 16
	flagOfGPU   = 32

	refBytes = object.IDBytes + 4 + 8
	// ObjectBytes is the least that an object takes in a table.
	ObjectBytes = 4 + object.IDBytes + 2 + 3*8 + 4*8 + 8 + 4 + 4*2 + 3*2
)

// Object is one sealed object of a Catalog.
type Object struct {
	Record  spill.Record // Sums: nil where they are not known
	Segment uint64       // 0: it is empty, or on disk alone
	Offset  uint64
	Spilled bool
	Strict  bool
	Damaged bool          // its memory is not what it was
	Kept    bool          // a copy that stays
	Left    time.Duration // class ttl: of its time
	Device  object.Device // zero: it is of no GPU, or in its memory
}

var le = binary.LittleEndian

func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return le.AppendUint64(b, 0)
	}
	return le.AppendUint64(b, uint64(t.UnixNano()))
}

func appendStr(b []byte, s string) []byte { return append(le.AppendUint16(b, uint16(len(s))), s...) }

func flagIf(set bool, flag byte) byte {
	if set {
		return flag
	}
	return 0
}

// AppendTo appends the object to a table, which it returns.
func (o *Object) AppendTo(b []byte) []byte {
	r := &o.Record
	at := len(b)
	b = append(le.AppendUint32(b, 0), r.ID[:]...)
	b = append(b, flagIf(o.Spilled, flagSpilled)|flagIf(o.Strict, flagStrict)|flagIf(r.Pinned, flagPinned)|
		flagIf(o.Damaged, flagDamaged)|flagIf(o.Kept, flagKept)|
		flagIf(!o.Device.IsZero(), flagOfGPU), byte(r.Class))
	b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, r.SizeBytes), o.Segment), o.Offset)
	b = appendTime(appendTime(appendTime(appendTime(b, r.Created), r.Sealed), r.Bound), r.Expires)
	b = le.AppendUint32(le.AppendUint64(b, uint64(o.Left)), uint32(r.CreatorPID))
	b = appendStr(appendStr(appendStr(appendStr(b, r.Tenant), r.Name), r.Creator), string(r.Meta))
	b = le.AppendUint16(b, uint16(len(r.Labels)))
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		b = appendStr(appendStr(b, k), r.Labels[k])
	}
	b = le.AppendUint16(b, uint16(len(r.Grants)))
	for _, g := range r.Grants {
		b = appendStr(b, g)
	}
	b = le.AppendUint16(b, uint16(len(r.Members)))
	for _, m := range r.Members {
		b = append(appendStr(b, m.Name), m.ID[:]...)
	}
	b = append(le.AppendUint32(b, uint32(len(r.Sums))), r.Sums...)
	if !o.Device.IsZero() {
		b = append(b, o.Device[:]...)
	}
	le.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// Ref is one connection's references to one object.
type Ref struct {
	ID    object.ID
	Count int
	Since time.Time // of the first
}

// MakeRefs makes an empty table with room for n Refs.
func MakeRefs(n int) []byte { return make([]byte, 0, n*refBytes) }

// AppendTo appends r to a table, which it returns.
func (r Ref) AppendTo(b []byte) []byte {
	return appendTime(le.AppendUint32(append(b, r.ID[:]...), uint32(r.Count)), r.Since)
}

// CountRefs is how many Refs a table has.
func CountRefs(table []byte) int { return len(table) / refBytes }

// Refs goes through a table. What is too short for a Ref at its end is left out.
func Refs(table []byte) iter.Seq[Ref] {
	return func(yield func(Ref) bool) {
		c := cursor{b: table}
		for range CountRefs(table) {
			if !yield(Ref{ID: c.id(), Count: int(c.number(4)), Since: c.time()}) {
				return
			}
		}
	}
}

// cursor reads a table. What is missing reads as zero, and done says so.
type cursor struct {
	b     []byte
	short bool
}

func (c *cursor) take(n int) []byte {
	if n > len(c.b) {
		c.b, c.short = nil, true
		return nil
	}
	field := c.b[:n:n]
	c.b = c.b[n:]
	return field
}

func (c *cursor) number(n int) (v uint64) {
	field := c.take(n)
	if len(field) == 8 {
		return le.Uint64(field)
	}
	for i, x := range field {
		v |= uint64(x) << (8 * i)
	}
	return v
}

func (c *cursor) id() (id object.ID) {
	copy(id[:], c.take(len(id)))
	return id
}

func (c *cursor) str() string { return string(c.take(int(c.number(2)))) }

// strLike is str; what is equal to before is before: most objects have the tenant and the creator of the one before.
func (c *cursor) strLike(before string) string {
	if s := c.take(int(c.number(2))); string(s) != before {
		return string(s)
	}
	return before
}

func (c *cursor) time() time.Time {
	if ns := c.number(8); ns != 0 {
		return time.Unix(0, int64(ns)).UTC()
	}
	return time.Time{}
}

// NextObject reads the first object of a table, and returns the rest of the table. before is the object that stood
// before it, or nil. Error: object.ErrProtocol.
func NextObject(table []byte, before *Object) (o *Object, rest []byte, err error) {
	c := cursor{b: table}
	c.b = c.take(int(c.number(4)))
	if c.short {
		return nil, nil, fmt.Errorf("%w: the catalog's table of objects ends in the middle of one", object.ErrProtocol)
	}
	rest = table[4+len(c.b):]
	o = &Object{Record: spill.Record{ID: c.id()}}
	r, flags := &o.Record, c.number(1)
	o.Spilled, o.Strict, r.Pinned = flags&flagSpilled != 0, flags&flagStrict != 0, flags&flagPinned != 0
	o.Damaged, o.Kept = flags&flagDamaged != 0, flags&flagKept != 0
	r.Class, r.SizeBytes, o.Segment, o.Offset = object.Class(c.number(1)), c.number(8), c.number(8), c.number(8)
	r.Created, r.Sealed, r.Bound, r.Expires = c.time(), c.time(), c.time(), c.time()
	o.Left, r.CreatorPID = time.Duration(c.number(8)), int(c.number(4))
	like := spill.Record{}
	if before != nil {
		like = before.Record
	}
	r.Tenant, r.Name, r.Creator = c.strLike(like.Tenant), c.str(), c.strLike(like.Creator)
	if meta := c.str(); meta != "" {
		r.Meta = []byte(meta)
	}
	for n := c.number(2); n > 0 && !c.short; n-- {
		if r.Labels == nil {
			r.Labels = make(map[string]string)
		}
		k := c.str()
		r.Labels[k] = c.str()
	}
	for n := c.number(2); n > 0 && !c.short; n-- {
		r.Grants = append(r.Grants, c.str())
	}
	for n := c.number(2); n > 0 && !c.short; n-- {
		name := c.str()
		r.Members = append(r.Members, object.Member{Name: name, ID: c.id()})
	}
	if len(c.b) > 0 { // a release before this one had no sums
		if sums := c.take(int(c.number(4))); len(sums) > 0 && spill.FitSums(r.SizeBytes, sums) {
			r.Sums = slices.Clone(sums)
		}
	}
	if flags&flagOfGPU != 0 {
		copy(o.Device[:], c.take(len(o.Device)))
	}
	if c.short {
		return nil, nil, fmt.Errorf("%w: object %s of the catalog is cut short", object.ErrProtocol, r.ID)
	}
	return o, rest, nil
}

package store

import (
	"encoding/binary"
	"fmt"
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
	handoffSpilled = 1
	handoffStrict  = 2
	handoffPinned  = 4
	handoffDamaged = 8
	handoffKept    = 16
	handoffOfGPU   = 32

	handoffRefBytes    = object.IDBytes + 4 + 8
	handoffObjectBytes = 4 + object.IDBytes + 2 + 3*8 + 4*8 + 8 + 4 + 4*2 + 3*2 // the least
)

// handoffObject is one sealed object of a Catalog.
type handoffObject struct {
	record  spill.Record // Sums: nil where they are not known
	segment uint64       // 0: it is empty, or on disk alone
	offset  uint64
	spilled bool
	strict  bool
	damaged bool          // its memory is not what it was
	kept    bool          // a copy that stays
	left    time.Duration // class ttl: of its time
	device  object.Device // zero: it is of no GPU, or in its memory
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

// appendTo appends the object to a table.
func (o *handoffObject) appendTo(b []byte) []byte {
	r := &o.record
	at := len(b)
	b = append(le.AppendUint32(b, 0), r.ID[:]...)
	b = append(b, flagIf(o.spilled, handoffSpilled)|flagIf(o.strict, handoffStrict)|flagIf(r.Pinned, handoffPinned)|
		flagIf(o.damaged, handoffDamaged)|flagIf(o.kept, handoffKept)|
		flagIf(!o.device.IsZero(), handoffOfGPU), byte(r.Class))
	b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, r.SizeBytes), o.segment), o.offset)
	b = appendTime(appendTime(appendTime(appendTime(b, r.Created), r.Sealed), r.Bound), r.Expires)
	b = le.AppendUint32(le.AppendUint64(b, uint64(o.left)), uint32(r.CreatorPID))
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
	if !o.device.IsZero() {
		b = append(b, o.device[:]...)
	}
	le.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// handoffCursor reads a table. What is missing reads as zero, and done says so.
type handoffCursor struct {
	b     []byte
	short bool
}

func (c *handoffCursor) take(n int) []byte {
	if n > len(c.b) {
		c.b, c.short = nil, true
		return nil
	}
	field := c.b[:n:n]
	c.b = c.b[n:]
	return field
}

func (c *handoffCursor) number(n int) (v uint64) {
	field := c.take(n)
	if len(field) == 8 {
		return le.Uint64(field)
	}
	for i, x := range field {
		v |= uint64(x) << (8 * i)
	}
	return v
}

func (c *handoffCursor) id() (id object.ID) {
	copy(id[:], c.take(len(id)))
	return id
}

func (c *handoffCursor) str() string { return string(c.take(int(c.number(2)))) }

// strLike is str; what is equal to before is before: most objects have the tenant and the creator of the one before.
func (c *handoffCursor) strLike(before string) string {
	if s := c.take(int(c.number(2))); string(s) != before {
		return string(s)
	}
	return before
}

func (c *handoffCursor) time() time.Time {
	if ns := c.number(8); ns != 0 {
		return time.Unix(0, int64(ns)).UTC()
	}
	return time.Time{}
}

// nextObject reads the first object of a table, which follows before (nil: none), and gives the rest of the table. A
// fault is ErrProtocol.
func nextObject(table []byte, before *handoffObject) (o *handoffObject, rest []byte, err error) {
	c := handoffCursor{b: table}
	c.b = c.take(int(c.number(4)))
	if c.short {
		return nil, nil, fmt.Errorf("%w: the catalog's table of objects ends in the middle of one", object.ErrProtocol)
	}
	rest = table[4+len(c.b):]
	o = &handoffObject{record: spill.Record{ID: c.id()}}
	r, flags := &o.record, c.number(1)
	o.spilled, o.strict, r.Pinned = flags&handoffSpilled != 0, flags&handoffStrict != 0, flags&handoffPinned != 0
	o.damaged, o.kept = flags&handoffDamaged != 0, flags&handoffKept != 0
	r.Class, r.SizeBytes, o.segment, o.offset = object.Class(c.number(1)), c.number(8), c.number(8), c.number(8)
	r.Created, r.Sealed, r.Bound, r.Expires = c.time(), c.time(), c.time(), c.time()
	o.left, r.CreatorPID = time.Duration(c.number(8)), int(c.number(4))
	like := spill.Record{}
	if before != nil {
		like = before.record
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
	if flags&handoffOfGPU != 0 {
		copy(o.device[:], c.take(len(o.device)))
	}
	if c.short {
		return nil, nil, fmt.Errorf("%w: object %s of the catalog is cut short", object.ErrProtocol, r.ID)
	}
	return o, rest, nil
}

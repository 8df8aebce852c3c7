// Package kernelargs keeps the values of a kernel's arguments, and knows which of them the worker has yet to be sent.
//
// A value that is set again to what was sent last does not travel again. One that names an object travels again when
// the object has got another number. There are no locks: a Table belongs to a kernel, whose lock guards it.
package kernelargs

import (
	"bytes"
	"encoding/binary"

	"tendril/forwarding/clwire"
)

// Object is what an argument may name: a buffer, an image or a sampler.
type Object interface {
	Number() uint64 // by which the worker knows it now
	Alive() bool    // the program, or a command, has a reference
	Retain() bool   // takes a reference; false: there is none left
}

// Value is what clSetKernelArg was given (OpenCL 3.0 §5.9.2). The zero value is that of an argument that was not set.
type Value struct {
	set, dirty bool // dirty: it differs from what was last sent
	kind       uint8
	size       uint64 // bytes, as the program gave them
	small      [16]byte
	large      []byte // what does not fit small
	object     Object // nil: it names none, or NULL
	sent       uint64 // the object's number when last sent
}

// SetBytes makes it a value, of which it takes a copy.
func (v *Value) SetBytes(data []byte) {
	*v = Value{set: true, dirty: true, kind: clwire.ArgBytes, size: uint64(len(data))}
	if len(data) <= len(v.small) {
		copy(v.small[:], data)
		return
	}
	v.large = bytes.Clone(data)
}

// SetLocal makes it so many bytes of local memory.
func (v *Value) SetLocal(size uint64) {
	*v = Value{set: true, dirty: true, kind: clwire.ArgLocal, size: size}
	binary.LittleEndian.PutUint64(v.small[:], size)
}

// SetObject makes it name an object, which is no nil pointer; nil is NULL. kind is ArgMem or ArgSampler.
func (v *Value) SetObject(kind uint8, o Object) {
	*v = Value{set: true, dirty: true, kind: kind, size: 8, object: o}
	if o != nil {
		binary.LittleEndian.PutUint64(v.small[:], o.Number())
	}
}

// SetPointer makes it an address in the shared virtual memory of an object; nil and 0 are NULL.
func (v *Value) SetPointer(o Object, address uint64) {
	*v = Value{set: true, dirty: true, kind: clwire.ArgSVM, size: 8, object: o}
	if o != nil {
		binary.LittleEndian.PutUint64(v.small[:], o.Number())
	}
	binary.LittleEndian.PutUint64(v.small[8:], address)
}

// Kind is one of clwire's Arg numbers, Size the bytes that the program gave.
func (v *Value) Kind() uint8  { return v.kind }
func (v *Value) Size() uint64 { return v.size }

// Wire is the value as it travels. It is valid while v is.
func (v *Value) Wire() []byte {
	switch {
	case v.large != nil:
		return v.large
	case v.kind == clwire.ArgBytes:
		return v.small[:v.size]
	case v.kind == clwire.ArgSVM:
		return v.small[:16]
	}
	return v.small[:8]
}

func (v *Value) equals(w *Value) bool {
	return v.kind == w.kind && v.size == w.size && v.object == w.object && bytes.Equal(v.Wire(), w.Wire())
}

// Table is the arguments of one kernel.
type Table struct {
	values     []Value
	unset      int    // those without a value
	dirty      int    // those whose value differs from what was last sent
	objects    []int  // indices of those that name an object
	localBytes uint64 // of local memory
}

// New makes the table of a kernel with n arguments, none of which is set.
func New(n uint32) Table { return Table{values: make([]Value, n), unset: int(n)} }

// Len is the number of arguments.
func (t *Table) Len() int { return len(t.values) }

// Complete says that each argument has a value.
func (t *Table) Complete() bool { return t.unset == 0 }

// LocalBytes is the sum of the local memory that arguments ask for.
func (t *Table) LocalBytes() uint64 { return t.localBytes }

// Objects are the indices of the arguments that name an object, which Object gives. It is valid until the next Set.
func (t *Table) Objects() []int      { return t.objects }
func (t *Table) Object(i int) Object { return t.values[i].object }

// Set gives an argument its value.
func (t *Table) Set(i int, v *Value) {
	old := &t.values[i]
	if old.set && !old.dirty && old.equals(v) {
		return
	}
	if !old.set {
		t.unset--
	}
	if !old.dirty {
		t.dirty++
	}
	if old.kind == clwire.ArgLocal && old.set {
		t.localBytes -= old.size
	}
	if v.kind == clwire.ArgLocal {
		t.localBytes += v.size
	}
	moved := (old.object == nil) != (v.object == nil)
	*old = *v
	if moved {
		t.listObjects()
	}
}

func (t *Table) listObjects() {
	t.objects = t.objects[:0]
	for i := range t.values {
		if t.values[i].object != nil {
			t.objects = append(t.objects, i)
		}
	}
}

// Clone gives a table with the same values, all of which are still to be sent.
func (t *Table) Clone() Table {
	c := Table{values: append([]Value(nil), t.values...), unset: t.unset, localBytes: t.localBytes,
		objects: append([]int(nil), t.objects...)}
	for i := range c.values {
		c.values[i].large = bytes.Clone(c.values[i].large)
	}
	c.Resend()
	return c
}

// Retain takes a reference to each object; false: one has none left, and no reference was kept. release gives one back.
func (t *Table) Retain(release func(Object)) bool {
	for n, i := range t.objects {
		if t.values[i].object.Retain() {
			continue
		}
		for _, i := range t.objects[:n] {
			release(t.values[i].object)
		}
		return false
	}
	return true
}

// Renumber has an argument travel again if its object has got another number since it was last sent.
func (t *Table) Renumber(i int) {
	v := &t.values[i]
	id := v.object.Number()
	if id == v.sent {
		return
	}
	v.sent = id
	binary.LittleEndian.PutUint64(v.small[:], id)
	t.markDirty(v)
}

// Resend has all values travel again: nobody knows which ones the worker has.
func (t *Table) Resend() {
	for i := range t.values {
		if v := &t.values[i]; v.set {
			t.markDirty(v)
		}
	}
}

func (t *Table) markDirty(v *Value) {
	if !v.dirty {
		v.dirty = true
		t.dirty++
	}
}

// TakeDirty appends what is to be sent, which counts as sent from here on. The records are valid until the next Set.
func (t *Table) TakeDirty(args []clwire.Arg) []clwire.Arg {
	if t.dirty == 0 {
		return args
	}
	for i := range t.values {
		if v := &t.values[i]; v.dirty {
			args = append(args, clwire.Arg{Index: uint16(i), Kind: v.kind, Data: v.Wire()})
			v.dirty = false
		}
	}
	t.dirty = 0
	return args
}

// All appends every argument, and counts none as sent.
func (t *Table) All(args []clwire.Arg) []clwire.Arg {
	for i := range t.values {
		args = append(args, clwire.Arg{Index: uint16(i), Kind: t.values[i].kind, Data: t.values[i].Wire()})
	}
	return args
}

// Sent counts every value as sent, and says whether one was not.
func (t *Table) Sent() (news bool) {
	news = t.dirty > 0
	for i := range t.values {
		t.values[i].dirty = false
	}
	t.dirty = 0
	return news
}

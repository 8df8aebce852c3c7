package kernelargs

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"tendril/forwarding/clwire"
)

// fake is an object with references.
type fake struct {
	id   uint64
	refs int
}

func (f *fake) Number() uint64 { return f.id }
func (f *fake) Alive() bool    { return f.refs > 0 }

func (f *fake) Retain() bool {
	if f.refs > 0 {
		f.refs++
	}
	return f.refs > 0
}

func value(data ...byte) *Value {
	var v Value
	v.SetBytes(data)
	return &v
}

func local(size uint64) *Value {
	var v Value
	v.SetLocal(size)
	return &v
}

func naming(o Object) *Value {
	var v Value
	v.SetObject(clwire.ArgMem, o)
	return &v
}

// travels takes what is to be sent, by index.
func travels(t *Table) map[uint16][]byte {
	sent := map[uint16][]byte{}
	for _, a := range t.TakeDirty(nil) {
		sent[a.Index] = bytes.Clone(a.Data)
	}
	return sent
}

func wantTravel(t *testing.T, table *Table, want map[uint16][]byte) {
	t.Helper()
	got := travels(table)
	for i, data := range want {
		if there, ok := got[i]; !ok || !bytes.Equal(there, data) {
			t.Errorf("argument %d travels as %v (%v), want %v", i, there, ok, data)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d arguments travel, want %d: %v", len(got), len(want), got)
	}
}

// TestOnlyNewsTravels: what is set again to what was sent last does not travel again.
func TestOnlyNewsTravels(t *testing.T) {
	table := New(2)
	table.Set(0, value(1, 2, 3, 4))
	table.Set(1, value(5))
	wantTravel(t, &table, map[uint16][]byte{0: {1, 2, 3, 4}, 1: {5}})
	table.Set(0, value(1, 2, 3, 4))
	wantTravel(t, &table, nil)
	table.Set(0, value(1, 2, 3, 4, 5)) // more of the same bytes
	wantTravel(t, &table, map[uint16][]byte{0: {1, 2, 3, 4, 5}})
	table.Set(1, value(6))
	table.Set(1, value(5)) // back again, which nobody was told of
	wantTravel(t, &table, map[uint16][]byte{1: {5}})
	table.Resend()
	wantTravel(t, &table, map[uint16][]byte{0: {1, 2, 3, 4, 5}, 1: {5}})
}

// TestLargeValueIsACopy: what the program does to its memory afterwards is not the argument's.
func TestLargeValueIsACopy(t *testing.T) {
	data := bytes.Repeat([]byte{7}, 100)
	table := New(1)
	table.Set(0, value(data...))
	want := bytes.Clone(data)
	v := value(data...)
	clear(data)
	table.Set(0, v)
	wantTravel(t, &table, map[uint16][]byte{0: want})
}

func TestComplete(t *testing.T) {
	table := New(2)
	if table.Complete() || table.Len() != 2 {
		t.Error("nothing is set")
	}
	table.Set(1, value(1))
	table.Set(1, value(2))
	if table.Complete() {
		t.Error("one argument of two is set")
	}
	table.Set(0, naming(nil)) // NULL is a value
	if !table.Complete() || len(table.Objects()) != 0 {
		t.Errorf("complete %v, objects %v", table.Complete(), table.Objects())
	}
	wantTravel(t, &table, map[uint16][]byte{0: make([]byte, 8), 1: {2}})
}

func TestLocalBytes(t *testing.T) {
	table := New(2)
	table.Set(0, local(100))
	table.Set(1, local(30))
	table.Set(0, local(50))
	if got := table.LocalBytes(); got != 80 {
		t.Errorf("%d bytes", got)
	}
	table.Set(1, value(1))
	if got := table.LocalBytes(); got != 50 {
		t.Errorf("%d bytes without the second", got)
	}
	if v := local(9); v.Kind() != clwire.ArgLocal || v.Size() != 9 {
		t.Errorf("%+v", v)
	}
}

func number(id uint64) []byte { return binary.LittleEndian.AppendUint64(nil, id) }

// TestObjectsNumber: an object that has got another number travels again, and no other.
func TestObjectsNumber(t *testing.T) {
	one, two := &fake{id: 11, refs: 1}, &fake{id: 22, refs: 1}
	table := New(3)
	table.Set(0, naming(one))
	table.Set(1, value(1))
	table.Set(2, naming(two))
	if !slices.Equal(table.Objects(), []int{0, 2}) || table.Object(2) != Object(two) {
		t.Errorf("objects %v", table.Objects())
	}
	launch := func() {
		for _, i := range table.Objects() {
			table.Renumber(i)
		}
	}
	launch()
	wantTravel(t, &table, map[uint16][]byte{0: number(11), 1: {1}, 2: number(22)})
	launch()
	wantTravel(t, &table, nil)
	two.id = 23
	launch()
	wantTravel(t, &table, map[uint16][]byte{2: number(23)})
	table.Set(2, value(9))
	if !slices.Equal(table.Objects(), []int{0}) {
		t.Errorf("objects %v", table.Objects())
	}
}

// TestCloneIsSentWhole: a clone has the values, none of which was sent, and goes its own way.
func TestCloneIsSentWhole(t *testing.T) {
	object := &fake{id: 5, refs: 1}
	table := New(4)
	table.Set(0, value(bytes.Repeat([]byte{3}, 40)...))
	table.Set(1, naming(object))
	table.Set(2, local(16))
	travels(&table)
	c := table.Clone()
	if c.Complete() || c.LocalBytes() != 16 || !slices.Equal(c.Objects(), []int{1}) {
		t.Errorf("the clone: %+v", c)
	}
	table.Set(0, value(1))
	table.Set(1, value(1))
	wantTravel(t, &c, map[uint16][]byte{0: bytes.Repeat([]byte{3}, 40), 1: number(5), 2: number(16)})
	if !slices.Equal(c.Objects(), []int{1}) {
		t.Errorf("the clone's objects changed: %v", c.Objects())
	}
}

// TestRecorded: a recorded launch has all arguments, and is sent anew if one has changed.
func TestRecorded(t *testing.T) {
	object := &fake{id: 5, refs: 1}
	table := New(2)
	table.Set(0, naming(object))
	table.Set(1, value(8))
	if all := table.All(nil); len(all) != 2 || !bytes.Equal(all[1].Data, []byte{8}) || all[1].Index != 1 {
		t.Errorf("%+v", all)
	}
	table.Renumber(0)
	if !table.Sent() || table.Sent() {
		t.Error("it is news once")
	}
	object.id = 6
	table.Renumber(0)
	if !table.Sent() {
		t.Error("another number is news")
	}
}

// TestRetain: a launch has a reference to each object, or to none.
func TestRetain(t *testing.T) {
	one, gone := &fake{id: 1, refs: 1}, &fake{id: 2, refs: 1}
	table := New(2)
	table.Set(0, naming(one))
	table.Set(1, naming(gone))
	release := func(o Object) { o.(*fake).refs-- }
	if !table.Retain(release) || one.refs != 2 || gone.refs != 2 {
		t.Fatalf("references %d, %d", one.refs, gone.refs)
	}
	gone.refs = 0
	if table.Retain(release) || one.refs != 2 {
		t.Errorf("with one that is gone: %d references to the other", one.refs)
	}
}

// TestSettingAllocatesNothing: programs set arguments before each launch.
func TestSettingAllocatesNothing(t *testing.T) {
	object := &fake{id: 1, refs: 1}
	table, args := New(2), make([]clwire.Arg, 0, 2)
	data := []byte{1, 2, 3, 4}
	if n := testing.AllocsPerRun(100, func() {
		data[0]++
		object.id++
		var v Value
		v.SetBytes(data)
		table.Set(0, &v)
		v.SetObject(clwire.ArgMem, object)
		table.Set(1, &v)
		table.Renumber(1)
		args = table.TakeDirty(args[:0])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

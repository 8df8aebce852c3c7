package trial

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"

	"tendril/client"
	"tendril/store/object"
)

// thing is an object's contents: all of it follows from its number, which stands in its metadata and, where it is long
// enough, at its head. So any process can check any object, whoever put it.
type thing struct {
	Number  uint64
	Size    uint64
	Class   object.Class
	Members []uint64 `json:",omitempty"` // numbers of a composite's, in order
}

const (
	metaMagic  = "SOAK"
	metaBytes  = 4 + 8 + 8
	shiftBytes = 1 << 20 // contents begin at one of so many places of the table
	mostBytes  = 9 << 20 // of one object
)

// table holds chance bytes; an object's are a piece of it. Comparing with it is as fast as memory is.
var table = sync.OnceValue(func() []byte {
	b := make([]byte, 0, mostBytes+shiftBytes+8)
	rng := rand.New(rand.NewPCG(1, 2))
	for len(b) < mostBytes+shiftBytes {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}
	return b
})

func (t thing) meta() []byte {
	b := binary.LittleEndian.AppendUint64([]byte(metaMagic), t.Number)
	b = binary.LittleEndian.AppendUint64(b, t.Size)
	for _, n := range t.Members {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// thingOf reads what meta wrote.
func thingOf(meta []byte) (t thing, err error) {
	if len(meta) < metaBytes || len(meta)%8 != metaBytes%8 || string(meta[:4]) != metaMagic {
		return t, fmt.Errorf("its metadata is not what was given: %x", meta)
	}
	t.Number, t.Size = binary.LittleEndian.Uint64(meta[4:]), binary.LittleEndian.Uint64(meta[12:])
	for at := metaBytes; at < len(meta); at += 8 {
		t.Members = append(t.Members, binary.LittleEndian.Uint64(meta[at:]))
	}
	return t, nil
}

func (t thing) head() (b [16]byte) {
	binary.LittleEndian.PutUint64(b[:], t.Number)
	binary.LittleEndian.PutUint64(b[8:], ^t.Number)
	return b
}

func (t thing) body(n int) []byte { return table()[t.Number*0x9e3779b97f4a7c15>>44:][:n] }

// fill writes the contents.
func (t thing) fill(b []byte) {
	copy(b, t.body(len(b)))
	head := t.head()
	copy(b, head[:])
}

// check compares every byte.
func (t thing) check(b []byte) error {
	if uint64(len(b)) != t.Size {
		return fmt.Errorf("it has %d bytes, was put with %d", len(b), t.Size)
	}
	head, want := t.head(), t.body(len(b))
	n := min(len(b), len(head))
	if bytes.Equal(b[:n], head[:n]) && bytes.Equal(b[n:], want[n:]) {
		return nil
	}
	first, last, wrong, zeros := -1, 0, 0, 0
	for i := range b {
		if i < n && b[i] == head[i] || i >= n && b[i] == want[i] {
			continue
		}
		if first < 0 {
			first = i
		}
		last = i
		wrong++
		if b[i] == 0 {
			zeros++
		}
	}
	return fmt.Errorf("%d of its %d bytes are wrong, from byte %d to byte %d; %d of them are zero", wrong, len(b),
		first, last, zeros)
}

// recognised gives what an object is by its metadata, and compares every byte.
func recognised(o *client.Object) (thing, error) {
	t, err := thingOf(o.Meta())
	if err == nil && len(t.Members) == 0 {
		err = t.check(o.Bytes())
	}
	if err != nil {
		err = fmt.Errorf("object %s, number %d: %w", o.ID(), t.Number, err)
	}
	return t, err
}

package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
)

var update = flag.Bool("update", false, "write testdata anew: only for a new layout")

// heapLevel is a level in memory that the race detector watches.
func heapLevel(n int) *Level {
	l := &Level{number: n, words: make([]atomic.Uint64, LevelBytes(n)/8)}
	l.begin()
	return l
}

// pair is both sides over the same memory, in one process.
type pair struct {
	table  Table[int]
	reader Reader
}

func newPair(t testing.TB, levels int) *pair {
	t.Helper()
	p := &pair{}
	for n := range levels {
		p.grow(t, n)
	}
	return p
}

func (p *pair) grow(t testing.TB, n int) {
	t.Helper()
	l := heapLevel(n)
	if err := p.table.Add(l); err != nil {
		t.Fatal(err)
	}
	if err := p.reader.add(l.words); err != nil {
		t.Fatal(err)
	}
}

func heapSlots() (*Slots, *Pins) {
	words := make([]atomic.Uint64, SlotsBytes/8)
	return &Slots{words: words}, newPins(words)
}

func id(n int) (id object.ID) {
	binary.LittleEndian.PutUint64(id[:], uint64(n)*0x9E3779B97F4A7C15+1)
	return id
}

func example() *Record {
	return &Record{ID: id(1), Name: "näme", Segment: 7, Offset: 64, Bytes: 1 << 30, Class: object.Named,
		Meta: []byte(`{"dtype":"<f4","shape":[2,3]}`)}
}

func TestGoldenBytes(t *testing.T) {
	p := newPair(t, 1)
	w, ok := p.table.Insert(example(), 1)
	if !ok {
		t.Fatal("no room in an empty table")
	}
	slots, pins := heapSlots()
	pins.Drop(pins.Hold(1))
	a, b := pins.Hold(w), pins.Hold(w)
	pins.Tell(w)
	pins.Drop(a)
	_ = b
	var got strings.Builder
	for _, part := range []struct {
		name  string
		words []atomic.Uint64
	}{{"level", p.table.levels[0].words}, {"slots", slots.words}} {
		for i := range part.words {
			if v := part.words[i].Load(); v != 0 {
				fmt.Fprintf(&got, "%s %d %016x\n", part.name, 8*i, v)
			}
		}
	}
	path := filepath.Join("testdata", "layout.txt")
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got.String() != string(want) {
		t.Errorf("%v; got\n%swant\n%s", err, got.String(), want)
	}
}

func TestFindGivesWhatWasInserted(t *testing.T) {
	p := newPair(t, 1)
	want := example()
	w, _ := p.table.Insert(want, 5)
	for what, k := range map[string]Key{"id": ByID(want.ID), "name": ByName(want.Name)} {
		var f Found
		if !p.reader.Find(k, &f) || !p.reader.Valid(f.Word) {
			t.Fatalf("by %s: not found", what)
		}
		if f.Word != w || f.ID() != want.ID || f.Name() != want.Name || f.Segment != want.Segment ||
			f.Offset != want.Offset ||
			f.Bytes != want.Bytes || f.Class != want.Class || !bytes.Equal(f.Meta(), want.Meta) {
			t.Errorf("by %s: %+v", what, f)
		}
	}
	if o, ok := p.table.Owner(w); !ok || o != 5 {
		t.Errorf("owner %d, %v", o, ok)
	}
	p.table.Retire(w)
	var f Found
	if p.reader.Find(ByID(want.ID), &f) || p.reader.Find(ByName(want.Name), &f) || p.reader.Valid(w) {
		t.Error("a retired record is found")
	}
	if _, ok := p.table.Owner(w); ok {
		t.Error("a retired record has an owner")
	}
	p.table.Free(w)
	again, _ := p.table.Insert(want, 6)
	if again.record() != w.record() || again.generation() != w.generation()+1 {
		t.Errorf("word %x, then %x", w, again)
	}
	if _, ok := p.table.Owner(w); ok || p.reader.Valid(w) {
		t.Error("the word of an earlier life counts")
	}
	if p.table.Live() != 1 {
		t.Errorf("%d live", p.table.Live())
	}
}

func TestLongTextsAndEmptyOnes(t *testing.T) {
	p := newPair(t, 1)
	long := strings.Repeat("x", MaxTextBytes)
	for i, c := range []struct {
		name, meta  string
		byID, name2 bool
	}{
		{"", "", true, false}, {long, "", true, true}, {"", long, true, false}, {"n", long, true, false},
		{long[1:], "m", true, true},
		{"", long + "x", false, false}, {long + "x", "", true, false},
	} {
		r := &Record{ID: id(i), Name: c.name, Meta: []byte(c.meta)}
		w, ok := p.table.Insert(r, i)
		var f Found
		found := p.reader.Find(ByID(r.ID), &f)
		if ok != c.byID || found != c.byID {
			t.Errorf("%d: inserted %v, found %v, want %v", i, ok, found, c.byID)
		}
		if found && string(f.Meta()) != c.meta {
			t.Errorf("%d: metadata %q", i, f.Meta())
		}
		if c.name != "" && p.reader.Find(ByName(c.name), &f) != c.name2 {
			t.Errorf("%d: found by name: %v", i, !c.name2)
		}
		if ok {
			p.table.Retire(w)
			p.table.Free(w)
		}
	}
}

// TestFullTable fills three levels, by id and by name, until there is no room, and empties them again.
func TestFullTable(t *testing.T) {
	p := newPair(t, 1)
	var words []Word
	r := func(i int) *Record { return &Record{ID: id(i), Name: fmt.Sprintf("object-%d", i), Segment: uint64(i)} }
	total, grown := records(0)+records(1)+records(2), 1
	for i := range total {
		if p.table.Short() && grown < 3 {
			p.grow(t, grown)
			grown++
		}
		w, ok := p.table.Insert(r(i), i)
		if !ok {
			if i < total*8/10 { // at 3/4 the table asks for another level
				t.Fatalf("no room for record %d of %d", i, total)
			}
			total = i
			break
		}
		words = append(words, w)
	}
	if !p.table.Short() || total > records(0)+records(1)+records(2) {
		t.Errorf("%d records and not short", total)
	}
	byName := 0
	var f Found
	for i := range total {
		if !p.reader.Find(ByID(id(i)), &f) || f.Segment != uint64(i) || f.Word != words[i] {
			t.Fatalf("object %d: %+v", i, f)
		}
		if p.reader.Find(ByName(r(i).Name), &f) && f.Segment == uint64(i) {
			byName++
		}
	}
	if byName < total*999/1000 { // a full pair of buckets leaves a name out
		t.Errorf("%d of %d are found by name", byName, total)
	}
	for _, w := range words {
		p.table.Retire(w)
		p.table.Free(w)
	}
	for _, l := range p.table.levels {
		for at := bucketAt(0); at < bucketAt(buckets(l.number)); at++ {
			if l.words[at].Load() != 0 {
				t.Fatalf("level %d: word %d is left over", l.number, at)
			}
		}
	}
	if p.table.Live() != 0 || p.reader.Find(ByID(id(0)), &f) {
		t.Error("something is left")
	}
}

func TestSpentRecordIsNotUsedAgain(t *testing.T) {
	p := newPair(t, 1)
	w, _ := p.table.Insert(example(), 0)
	p.table.Retire(w)
	p.table.levels[0].lives[w.record()] = maxGeneration - 1
	p.table.Free(w)
	last, _ := p.table.Insert(example(), 0)
	if last.generation() != maxGeneration || last.record() != w.record() || last.level() != 0 {
		t.Fatalf("word %x", last)
	}
	p.table.Retire(last)
	p.table.Free(last)
	if next, _ := p.table.Insert(example(), 0); next.record() == last.record() {
		t.Error("a record lives on after its last generation")
	}
}

func TestSlotsOverflow(t *testing.T) {
	slots, pins := heapSlots()
	for i := range MaxSlots {
		if got := pins.Hold(makeWord(uint64(i)+1, 0, 0)); got != i {
			t.Fatalf("slot %d, want %d", got, i)
		}
	}
	if pins.Hold(1) != -1 {
		t.Error("a slot too many")
	}
	if slots.Used() != MaxSlots || len(slots.Held(nil)) != MaxSlots {
		t.Errorf("%d used", slots.Used())
	}
	pins.Drop(17)
	if got := pins.Hold(1); got != 17 {
		t.Errorf("slot %d, want the free one", got)
	}
}

func TestRecent(t *testing.T) {
	slots, pins := heapSlots()
	told := func() (list []Word) {
		slots.Recent(func(w Word) { list = append(list, w) })
		return list
	}
	for _, w := range []Word{1, 2, 2, 2, 1} {
		pins.Tell(w)
	}
	if got := fmt.Sprint(told()); got != "[1 2 1]" {
		t.Error(got)
	}
	if told() != nil {
		t.Error("told twice")
	}
	for i := range 3*RingEntries + 5 {
		pins.Tell(Word(i + 10))
	}
	if got := told(); len(got) != RingEntries || got[RingEntries-1] != 3*RingEntries+14 || got[0] != 2*RingEntries+15 {
		t.Errorf("%d words: %v", len(got), got)
	}
}

// TestKernelKeepsReadersFromWriting maps real memory as two processes would.
func TestKernelKeepsReadersFromWriting(t *testing.T) {
	l, err := NewLevel(segment.Linux{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var table Table[int]
	if err := table.Add(l); err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	if err := table.Add(heapLevel(2)); !errors.Is(err, object.ErrInternal) {
		t.Errorf("level 2 after level 0: %v", err)
	}
	w, _ := table.Insert(example(), 0)
	file := dup(t, l.Dup)
	if _, err := segment.Map(file, l.Bytes(), true); !errors.Is(err, object.ErrPermission) {
		t.Errorf("a writable mapping of the table: %v", err)
	}
	if file.Truncate(0) == nil {
		t.Error("the table shrank")
	}
	m, err := segment.Map(file, l.Bytes(), false)
	if err != nil {
		t.Fatal(err)
	}
	var r Reader
	defer r.Close()
	if err := r.Add(m); err != nil {
		t.Fatal(err)
	}
	var f Found
	if !r.Find(ByName("näme"), &f) || f.Word != w {
		t.Errorf("%+v", f)
	}
	again, _ := segment.Map(file, l.Bytes(), false)
	if err := r.Add(again); !errors.Is(err, object.ErrProtocol) {
		t.Errorf("level 0 as level 1: %v", err)
	}
	s, err := NewSlots(segment.Linux{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	slotsFile := dup(t, s.Dup)
	if slotsFile.Truncate(0) == nil {
		t.Error("the slots shrank")
	}
	writable, err := segment.Map(slotsFile, SlotsBytes, true)
	if err != nil {
		t.Fatal(err)
	}
	pins, err := NewPins(writable)
	if err != nil {
		t.Fatal(err)
	}
	defer pins.Close()
	pins.Hold(w)
	if got := s.Held(nil); len(got) != 1 || got[0] != w {
		t.Errorf("held %x", got)
	}
}

func dup(t *testing.T, from func() (int, error)) *os.File {
	t.Helper()
	fd, err := from()
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v: not close-on-exec", flags, err)
	}
	f := os.NewFile(uintptr(fd), "index")
	t.Cleanup(func() { f.Close() })
	return f
}

// TestBothSidesAtOnce runs clients against a daemon over memory that the race detector watches. The objects' memory is
// ordinary: if the protocol did not order its use, the detector or the comparison would say so.
func TestBothSidesAtOnce(t *testing.T) {
	const places, clients = 8, 3
	rounds := 20_000
	if testing.Short() {
		rounds = 4_000
	}
	p := newPair(t, 1)
	memory := make([][16]uint64, places)
	var slots [clients]*Slots
	var stop atomic.Bool
	var held atomic.Int64
	var wait sync.WaitGroup
	for c := range clients {
		s, pins := heapSlots()
		slots[c] = s
		wait.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(c)))
			for !stop.Load() {
				n := rng.IntN(places)
				k := ByID(id(n))
				if n%2 == 0 {
					k = ByName(fmt.Sprint(n))
				}
				var f Found
				if !p.reader.Find(k, &f) {
					continue
				}
				slot := pins.Hold(f.Word)
				if p.reader.Valid(f.Word) {
					held.Add(1)
					pins.Tell(f.Word)
					for _, v := range memory[f.Segment] {
						if v != f.Offset {
							t.Errorf("object %d: its memory has %d", f.Offset, v)
							stop.Store(true)
						}
					}
				}
				pins.Drop(slot)
			}
		})
	}
	over := make(chan struct{})
	wait.Go(func() { // on a busy machine the daemon's rounds may be over before a client ran at all
		defer stop.Store(true)
		<-over
		for began := time.Now(); held.Load() == 0 && time.Since(began) < 5*time.Minute; {
			runtime.Gosched()
		}
	})
	daemon(t, p, memory, slots[:], rounds, &stop)
	close(over)
	wait.Wait()
	if held.Load() == 0 {
		t.Error("no client ever held anything: this test shows nothing")
	}
	for _, s := range slots {
		if left := s.Held(nil); len(left) > 0 {
			t.Errorf("slots that nobody cleared: %x", left)
		}
	}
}

// daemon puts objects into places and takes them out again, with a look at the slots before a place is used anew.
func daemon(t *testing.T, p *pair, memory [][16]uint64, slots []*Slots, rounds int, stop *atomic.Bool) {
	live := make([]Word, len(memory))
	retired := map[int]Word{} // by place
	rng := rand.New(rand.NewPCG(7, 8))
	for round := 1; round <= rounds && !stop.Load(); round++ {
		n := rng.IntN(len(memory))
		switch _, waits := retired[n]; {
		case waits:
		case live[n] == 0:
			for i := range memory[n] {
				memory[n][i] = uint64(round)
			}
			w, ok := p.table.Insert(&Record{ID: id(n), Name: fmt.Sprint(n), Segment: uint64(n),
				Offset: uint64(round)}, n)
			if !ok {
				t.Error("no room")
				return
			}
			live[n] = w
		default:
			p.table.Retire(live[n])
			retired[n], live[n] = live[n], 0
		}
		var list []Word
		for _, s := range slots {
			list = s.Held(list)
			s.Recent(func(w Word) { p.table.Owner(w) })
		}
		for at, w := range retired {
			if !contains(list, w) {
				p.table.Free(w)
				delete(retired, at)
			}
		}
	}
}

func contains(list []Word, w Word) bool {
	for _, other := range list {
		if other == w {
			return true
		}
	}
	return false
}

// FuzzHostileSlots lets a client write anything into its slots.
func FuzzHostileSlots(f *testing.F) {
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add(bytes.Repeat([]byte{0xff}, SlotsBytes))
	f.Add(bytes.Repeat([]byte{0, 0, 0, 1, 0, 0, 0, 0}, SlotsBytes/8))
	p := newPair(f, 1)
	real, _ := p.table.Insert(example(), 3)
	f.Add(binary.LittleEndian.AppendUint64(make([]byte, 8*slotsFirst), uint64(real)))
	f.Fuzz(func(t *testing.T, b []byte) {
		words := make([]atomic.Uint64, SlotsBytes/8)
		var whole [SlotsBytes]byte
		copy(whole[:], b)
		for i := range words {
			words[i].Store(binary.LittleEndian.Uint64(whole[8*i:]))
		}
		s := &Slots{words: words}
		list := s.Held(nil)
		if len(list) > MaxSlots || s.Used() > MaxSlots {
			t.Errorf("%d words in %d slots", len(list), s.Used())
		}
		told := 0
		look := func(w Word) {
			told++
			if o, ok := p.table.Owner(w); ok && (w != real || o != 3) {
				t.Errorf("word %x has owner %d", w, o)
			}
		}
		s.Recent(look)
		s.Recent(look)
		for _, w := range list {
			look(w)
		}
		if told > RingEntries+MaxSlots {
			t.Errorf("%d told", told)
		}
	})
}

// FuzzReader lets a daemon write anything into its table.
func FuzzReader(f *testing.F) {
	f.Add(uint32(headerWords*8), bytes.Repeat([]byte{0xff}, 64), "name")
	f.Add(uint32(recordAt(0, 0)*8), bytes.Repeat([]byte{0xff}, 192), "")
	f.Fuzz(func(t *testing.T, at uint32, b []byte, name string) {
		l := heapLevel(0)
		for i := 0; i+8 <= len(b); i += 8 {
			l.words[(int(at/8)+i/8)%len(l.words)].Store(binary.LittleEndian.Uint64(b[i:]))
		}
		var r Reader
		if r.add(l.words) != nil {
			return
		}
		var found Found
		for _, k := range []Key{ByID(id(1)), ByName(name + "x"), {hash: 0}} {
			if r.Find(k, &found) {
				r.Valid(found.Word)
				if len(found.Name())+len(found.Meta()) > MaxTextBytes {
					t.Errorf("%d + %d bytes of text", found.nameBytes, found.metaBytes)
				}
			}
		}
		r.Valid(Word(binary.LittleEndian.Uint64(append(b, make([]byte, 8)...))))
		r.Behind()
	})
}

// BenchmarkGetRelease is the client's whole path through the index, without its Object.
func BenchmarkGetRelease(b *testing.B) {
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("objects=%d", n), func(b *testing.B) {
			p := newPair(b, 1)
			for i, grown := 0, 1; i < n; i++ {
				if p.table.Short() {
					p.grow(b, grown)
					grown++
				}
				if _, ok := p.table.Insert(&Record{ID: id(i), Segment: 1}, i); !ok {
					b.Fatal("no room")
				}
			}
			_, pins := heapSlots()
			i := 0
			for b.Loop() {
				i++
				var f Found
				if !p.reader.Find(ByID(id(i*7919%n)), &f) {
					b.Fatal("not found")
				}
				slot := pins.Hold(f.Word)
				if !p.reader.Valid(f.Word) {
					b.Fatal("not valid")
				}
				pins.Tell(f.Word)
				pins.Drop(slot)
			}
		})
	}
}

package trace

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func newBuffer(t testing.TB, bytes uint64) (*os.File, string) {
	t.Helper()
	f, err := Create(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, fmt.Sprintf("/proc/self/fd/%d", f.Fd())
}

func newWriter(t testing.TB, path string) *Writer {
	t.Helper()
	w, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func read(t testing.TB, f *os.File) *Capture {
	t.Helper()
	c, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRecordsComeBackInOrder(t *testing.T) {
	f, path := newBuffer(t, 1<<20)
	w := newWriter(t, path)
	want := Record{Time: -5, X: 1 << 60, Kind: KindCall, Flags: 3, Code: 0xbeef, Thread: 7, Aux: 8, A: 1, B: 2,
		C: 1<<64 - 1}
	r := want
	w.Append(&r)
	w.AppendPair(&Record{Kind: KindCommand, Time: 1}, &Record{Kind: KindDevice, Time: 2})
	got := read(t, f)
	want.PID = uint32(os.Getpid())
	if len(got.Records) != 3 || got.Records[0] != want || got.Records[1].Kind != KindCommand ||
		got.Records[2].Kind != KindDevice || got.Lost != 0 || got.Torn != 0 {
		t.Errorf("%+v", got)
	}
}

// The layout is shared with the C half of the driver library, which other builds may have made.
func TestGoldenSlot(t *testing.T) {
	r := Record{Time: 0x0102030405060708, X: 9, Kind: KindTrip, Flags: 0x11, Code: 0x2233, PID: 0x44556677,
		Thread: 0x8899aabb, Aux: 0xccddeeff, A: 10, B: 11, C: 12}
	var b []byte
	for _, w := range r.words() {
		b = le.AppendUint64(b, w)
	}
	const want = "0000000000000000" + "0807060504030201" + "0900000000000000" + "0411332277665544" +
		"bbaa9988ffeeddcc" +
		"0a00000000000000" + "0b00000000000000" + "0c00000000000000"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("layout changed:\n got %s\nwant %s", got, want)
	}
	v := r.words()
	if recordOf(&v) != r {
		t.Errorf("became %+v", recordOf(&v))
	}
}

func TestOldestAreOverwritten(t *testing.T) {
	f, path := newBuffer(t, 0)
	w := newWriter(t, path)
	const n = 3*minSlots + 5
	for i := range uint64(n) {
		w.Append(&Record{Kind: KindWire, A: i})
	}
	got := read(t, f)
	if len(got.Records) != minSlots || got.Lost != n-minSlots || got.Records[0].A != n-minSlots ||
		got.Records[minSlots-1].A != n-1 {
		t.Errorf("%d records from %d, %d lost", len(got.Records), got.Records[0].A, got.Lost)
	}
}

// Several processes append at once; each Writer here has a mapping of its own, as they have.
func TestWritersDoNotDisturbEachOther(t *testing.T) {
	f, path := newBuffer(t, 1<<20)
	const writers, each = 4, 2000
	var wg sync.WaitGroup
	for i := range uint64(writers) {
		w := newWriter(t, path)
		wg.Go(func() {
			for j := range uint64(each) {
				text := w.Text(TextKernel, 0, fmt.Sprintf("kernel %d", j%10))
				w.Append(&Record{Kind: KindWire, A: i, B: j, C: uint64(text)})
			}
		})
	}
	wg.Wait()
	got := read(t, f)
	var next [writers]uint64
	for _, r := range got.Records {
		if r.A >= writers || r.B != next[r.A] {
			t.Fatalf("writer %d wrote %d next, not %d", r.A, next[r.A], r.B)
		}
		if want := fmt.Sprintf("kernel %d", r.B%10); got.Texts[uint32(r.C)].Text != want {
			t.Fatalf("text %d is %q, not %q", r.C, got.Texts[uint32(r.C)].Text, want)
		}
		next[r.A]++
	}
	if len(got.Records) != writers*each || got.Torn != 0 {
		t.Errorf("%d records, %d torn", len(got.Records), got.Torn)
	}
}

func TestTextsAreBounded(t *testing.T) {
	f, path := newBuffer(t, 0)
	w := newWriter(t, path)
	long := string(bytes.Repeat([]byte("x"), maxText+100))
	for i := range uint64(2 * TextBytes / maxText) {
		w.Text(TextDetail, i, long)
	}
	if n := w.Text(TextDetail, 1<<40, long); n != 0 {
		t.Errorf("a text without room has number %d", n)
	}
	got := read(t, f)
	if got.TextsLost == 0 || len(got.Texts) == 0 || len(got.Texts) > TextBytes/maxText {
		t.Errorf("%d texts, %d lost", len(got.Texts), got.TextsLost)
	}
	if a, b := w.Text(TextDetail, 0, long), w.Text(TextDetail, 0, long); a == 0 || a != b {
		t.Errorf("one text has numbers %d and %d", a, b)
	}
}

func TestNotABuffer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, b := range [][]byte{nil, make([]byte, headerBytes), make([]byte, bufferBytes(minSlots))} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); !errors.Is(err, ErrBuffer) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
	if _, err := Open(path + ".no"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestCounters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters")
	shared, err := OpenCounters(path)
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	for _, c := range []*Counters{{}, shared} {
		c.Add(CauseFinish)
		c.Add(CauseFinish)
		c.Add(CauseClock)
		c.Add(999)
		if got := c.Counts(); got[CauseFinish] != 2 || got[CauseOther] != 1 || Total(got) != 3 {
			t.Errorf("%v", got)
		}
	}
	got, err := ReadCounters(path)
	if err != nil || got[CauseFinish] != 2 || got[CauseClock] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	for cause := range numCauses {
		if cause.String() == "" {
			t.Errorf("cause %d has no name", cause)
		}
	}
}

// What one record costs with everything around it, as the session's hooks write it.
func BenchmarkAppend(b *testing.B) {
	_, path := newBuffer(b, 1<<20)
	w := newWriter(b, path)
	for b.Loop() {
		w.Append(&Record{Kind: KindSent, Time: w.Now(), Code: 12, A: 1, B: 2, C: 3})
	}
}

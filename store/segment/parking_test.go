package segment

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// storeFaults reports whether a store to *p faults.
func storeFaults(p *byte) (faulted bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { faulted = recover() != nil }()
	*p++
	return false
}

// pageFaults counts those of one goroutine's f.
func pageFaults(t *testing.T, f func()) int64 {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &before); err != nil {
		t.Fatal(err)
	}
	f()
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &after); err != nil {
		t.Fatal(err)
	}
	return after.Minflt - before.Minflt
}

// TestParking: ranges of all sizes, parked or not, one over another, fault while stores are forbidden and keep their
// bytes; and what was parked comes back with its page table entries.
func TestParking(t *testing.T) {
	const size, large = 8 << 20, parkFromBytes
	m := create(t, size)
	w, err := Map(received(t, m), size, true)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Map(received(t, m), size, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Unmap()
	defer w.Unmap()
	if err := m.SealForReaders(); err != nil {
		t.Fatal(err)
	}
	protect := func(from, to uint64, stores bool) {
		t.Helper()
		if err := w.Protect(from, to, stores); err != nil {
			t.Fatal(err)
		}
		for _, at := range []uint64{from, (from + to) / 2, to - 1} {
			before := r.Bytes()[at]
			if storeFaults(&w.Bytes()[at]) == stores {
				t.Errorf("[%d, %d), stores %v: not so at %d", from, to, stores, at)
			}
			if now := r.Bytes()[at]; stores != (now != before) || w.Bytes()[at] != now {
				t.Errorf("[%d, %d), stores %v: byte %d is %d, was %d", from, to, stores, at, now, before)
			}
		}
	}
	fill := func(from, to uint64) { copy(w.Bytes()[from:to], bytes.Repeat([]byte{byte(from >> 12)}, int(to-from))) }
	fill(0, size)
	for _, x := range [][2]uint64{{PageBytes, PageBytes + large}, {large, 3 * large}, {0, size},
		{2 * large, 2*large + PageBytes}} {
		fill(x[0], x[1])
		protect(x[0], x[1], false)
		protect(x[0], x[1], true)
	}
	protect(0, 4*large, false) // parked
	protect(large, large+PageBytes, true)
	protect(2*large, 2*large+PageBytes, true)
	protect(2*large, 2*large+PageBytes, false)
	protect(large/2, 4*large, true)
	protect(0, 4*large, true)
	if t.Failed() {
		return
	}

	fill(0, size)
	protect(0, size, false)
	protect(0, size, true)
	if w.parking.never {
		t.Skip("this kernel does not move the entries of shared mappings (Linux 5.13)")
	}
	touch := func() {
		for at := 0; at < size; at += PageBytes {
			w.Bytes()[at]++
		}
	}
	if n := pageFaults(t, touch); n > size/PageBytes/8 {
		t.Errorf("%d page faults for %d pages that came back", n, size/PageBytes)
	}
}

// TestParkedBesideMprotected: the parking begins while the segment's first page is read-only by mprotect, as after a
// small object's seal.
func TestParkedBesideMprotected(t *testing.T) {
	const size, large = 4 << 20, parkFromBytes
	w, err := Map(received(t, create(t, size)), size, true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Unmap()
	protect := func(from, to uint64, stores bool) {
		if err := w.Protect(from, to, stores); err != nil {
			t.Fatal(err)
		}
	}
	protect(0, PageBytes, false)
	protect(large, 2*large, false) // parked
	for at := uint64(4 * large); at < 5*large; at += large / 4 {
		protect(at, at+large/4, false)
	}
	protect(4*large, 5*large, true) // at once, as another object's memory
	for at := uint64(4 * large); at < 5*large; at += PageBytes {
		if storeFaults(&w.Bytes()[at]) {
			t.Fatalf("a store at %d faults", at)
		}
	}
	protect(0, size, true)
	if storeFaults(&w.Bytes()[0]) || storeFaults(&w.Bytes()[large]) {
		t.Error("a store faults")
	}
}

// TestParkingEnds: Unmap leaves no mapping that may write, so that a strict seal finds none.
func TestParkingEnds(t *testing.T) {
	const size = 1 << 20
	m := create(t, size)
	w, err := Map(received(t, m), size, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Protect(0, size, false); err != nil {
		t.Fatal(err)
	}
	if err := w.Unmap(); err != nil {
		t.Fatal(err)
	}
	if err := m.SealStrict(); err != nil {
		maps, _ := os.ReadFile("/proc/self/maps")
		t.Errorf("%v, with %d mappings of memfds", err, strings.Count(string(maps), "memfd:"))
	}
}

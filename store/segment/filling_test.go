package segment

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// aMapping is a writable mapping of n bytes that have no memory yet.
func aMapping(t *testing.T, n uint64) (*Mapping, *os.File) {
	t.Helper()
	fd, err := Linux{}.MemfdCreate("filling")
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "filling")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	m, err := Map(f, n, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Unmap() })
	return m, f
}

// blocksOf gives how many bytes of a file have memory.
func blocksOf(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return uint64(st.Blocks) * 512
}

// TestFilling: what is awaited has memory, all of it in the end, and what is not to be filled has none.
func TestFilling(t *testing.T) {
	const n, rest = 2*fillStepBytes + 3*PageBytes, 16 << 20
	m, f := aMapping(t, n+rest)
	filling := m.Fill(context.Background(), f, n)
	var all sync.WaitGroup
	for end := uint64(1); end <= n; end += fillStepBytes / 4 {
		all.Go(func() {
			if err := filling.Await(end); err != nil {
				t.Errorf("%d bytes: %v", end, err)
			}
			if have := blocksOf(t, f); have < end {
				t.Errorf("%d bytes have memory where %d were awaited", have, end)
			}
			m.Bytes()[end-1] = 1
		})
	}
	all.Wait()
	filling.Close()
	if have := blocksOf(t, f); have < n || have > n+fillStepBytes {
		t.Errorf("%d bytes have memory in the end, want %d", have, uint64(n))
	}
}

// TestFillingFails: who waits for what got no memory is told; what has it may be used.
func TestFillingFails(t *testing.T) {
	const n = 3 * fillStepBytes
	m, _ := aMapping(t, n)
	ctx, cancel := context.WithCancel(context.Background())
	for _, x := range []struct {
		fail func() error
		want error
	}{
		{func() error { return unix.ENOMEM }, object.ErrFull},
		{func() error { cancel(); return nil }, object.ErrTimeout},
	} {
		filling := m.fillBy(ctx, n, func(from, _ uint64) error {
			if from == fillStepBytes {
				return x.fail()
			}
			return nil
		})
		if err := filling.Await(n); !errors.Is(err, x.want) {
			t.Errorf("%v, want %v", err, x.want)
		}
		if err := filling.Await(fillStepBytes); err != nil {
			t.Errorf("what was filled before: %v", err)
		}
		filling.Close()
	}
}

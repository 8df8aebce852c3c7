package segment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// fillStepBytes is what one system call of a Filling populates: who waits for the first bytes goes on after that.
const fillStepBytes = 4 << 20

// Filling gives a mapping's pages memory, one after the other, while others already write to the first of them. The
// page table's entries are made in the same step, so that nobody faults. Safe for concurrent use.
type Filling struct {
	stop context.CancelFunc
	done chan struct{}

	mu  sync.Mutex
	at  uint64    // what lies before it has memory; guarded by mu
	err error     // why nothing comes after it; guarded by mu
	got sync.Cond // at or err is another
}

// Fill begins to give memory to the first n bytes of m, a writable mapping of f. It goes on until that is done, fails,
// or ctx ends; the caller must Close it before it unmaps m or closes f.
func (m *Mapping) Fill(ctx context.Context, f *os.File, n uint64) *Filling {
	return m.fillBy(ctx, n, func(from, to uint64) error {
		err := retryInterrupted(func() error { return unix.Madvise(m.data[from:to], unix.MADV_POPULATE_WRITE) })
		if errors.Is(err, unix.EINVAL) { // before Linux 5.14
			err = retryInterrupted(func() error {
				return unix.Fallocate(int(f.Fd()), 0, int64(from), int64(to-from))
			})
		}
		return err
	})
}

func (m *Mapping) fillBy(ctx context.Context, n uint64, populate func(from, to uint64) error) *Filling {
	_ = unix.Madvise(m.data, unix.MADV_HUGEPAGE) // advice only, as in Linux.Populate
	ctx, stop := context.WithCancel(ctx)
	f := &Filling{stop: stop, done: make(chan struct{})}
	f.got.L = &f.mu
	go func() {
		defer close(f.done)
		for at := uint64(0); at < n; {
			to, err := min(at+fillStepBytes, n), ctx.Err()
			if err != nil {
				err = fmt.Errorf("%w: populating a segment was cancelled: %w", object.ErrTimeout, err)
			} else if err = populate(at, to); err != nil {
				err = fmt.Errorf("%w: no memory for %d bytes of a segment: %w", object.ErrFull, to-at, err)
			}
			f.note(to, err)
			if err != nil {
				return
			}
			at = to
		}
	}()
	return f
}

func (f *Filling) note(at uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err = err; err == nil {
		f.at = at
	}
	f.got.Broadcast()
}

// Await waits until the first end bytes have memory. Errors: ErrFull where they get none; ErrTimeout where the context
// of Fill ended before, or Close was called. end is at most what Fill was told.
func (f *Filling) Await(end uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.at < end && f.err == nil {
		f.got.Wait()
	}
	if f.at >= end {
		return nil
	}
	return f.err
}

// Close leaves the rest, and waits until nothing is populated any more.
func (f *Filling) Close() {
	f.stop()
	<-f.done
}

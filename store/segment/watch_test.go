package segment

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// TestWatch: memory of either kind is reported once the last mapping and the last descriptor of it are gone, and not
// before; also by a Watch that another process goes on with.
func TestWatch(t *testing.T) {
	for name, makeMemory := range map[string]func() (*Memory, error){
		"ordinary pages": func() (*Memory, error) { return Create(Linux{}, 2<<20) },
		"huge pages":     func() (*Memory, error) { return CreateHuge(Linux{}, 2<<20, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			m, err := makeMemory()
			if errors.Is(err, object.ErrFull) || errors.Is(err, object.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			w, err := NewWatch(Linux{})
			if err != nil {
				t.Fatal(err)
			}
			number, err := w.Add(Linux{}, m.FD())
			if err != nil {
				t.Fatal(err)
			}
			mapping, err := m.Map(false)
			if err != nil {
				t.Fatal(err)
			}
			m.Close()
			if numbers, _ := w.Freed(); len(numbers) > 0 {
				t.Errorf("reported while it is mapped: %v", numbers)
			}
			w.Interrupt()
			if w, err = w.Renew(); err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if alive, err := w.Alive(); err != nil || len(alive) != 1 || alive[number] == 0 {
				t.Errorf("alive: %v, %v", alive, err)
			}
			mapping.Unmap()
			var numbers []int32
			await.Until(t, "report of free memory", func() bool { // who looks through processes may have it for a moment
				more, lost := w.Freed()
				numbers = append(numbers, more...)
				return lost || len(numbers) > 0
			})
			if len(numbers) != 1 || numbers[0] != number {
				t.Errorf("reported when it is free: %v, want %d", numbers, number)
			}
			if alive, err := w.Alive(); err != nil || len(alive) != 0 {
				t.Errorf("alive at the end: %v, %v", alive, err)
			}
		})
	}
}

// heldKernel is one under which somebody else has each new memory for a moment, as a child has it until its exec.
type heldKernel struct{ Linux }

func (k heldKernel) MemfdCreate(name string) (int, error) {
	fd, err := k.Linux.MemfdCreate(name)
	if err != nil {
		return -1, err
	}
	held, err := k.Linux.Dup(fd)
	if err != nil {
		return -1, err
	}
	time.AfterFunc(10*time.Millisecond, func() { unix.Close(held) })
	return fd, nil
}

// TestWatchIsTriedWithPatience: that memory is free may be reported a moment after this process has let go of it.
func TestWatchIsTriedWithPatience(t *testing.T) {
	w, err := NewWatch(Linux{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.try(heldKernel{}, 5*time.Minute); err != nil {
		t.Error(err)
	}
}

// Memory is free when the kernel gives its watch up, though there was no room for the event before that.
func TestWatchGivenUp(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	w := &Watch{fd: fds[0]}
	defer unix.Close(w.fd)
	var b []byte
	for _, event := range [][2]uint32{{7, unix.IN_DELETE_SELF}, {7, unix.IN_IGNORED}, {8, unix.IN_IGNORED}} {
		for _, word := range []uint32{event[0], event[1], 0, 0} {
			b = binary.NativeEndian.AppendUint32(b, word)
		}
	}
	if _, err := unix.Write(fds[1], b); err != nil {
		t.Fatal(err)
	}
	if numbers, lost := w.Freed(); lost || !slices.Equal(numbers, []int32{7, 8}) {
		t.Errorf("reported %v, lost %v; want 7 and 8", numbers, lost)
	}
}

// TestWatchAgain: Again has Wait call f also where nothing is there to be read.
func TestWatchAgain(t *testing.T) {
	w, err := NewWatch(Linux{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	calls, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		w.Wait(func() bool { calls <- struct{}{}; return false })
	}()
	for range 10 {
		<-calls
		w.Again()
	}
	<-calls
	w.Interrupt()
	<-ended
	w.Again()
}

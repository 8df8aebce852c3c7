package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

var le = binary.LittleEndian

// bufferBytes is a buffer's size.
func bufferBytes(slots uint64) int { return SlotsAt + int(slots)*SlotBytes }

// Create makes a buffer of at most maxBytes (rounded down to a power of two of
// records, 64 KiB at least) as a memfd. The caller owns the file. Memory is
// taken as records come.
func Create(maxBytes uint64) (*os.File, error) {
	slots := uint64(minSlots)
	for slots < maxSlots && slots*2*SlotBytes <= maxBytes {
		slots *= 2
	}
	fd, err := unix.MemfdCreate("tendril-trace", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd for a trace: %w", err)
	}
	f := os.NewFile(uintptr(fd), "tendril-trace")
	var head [32]byte
	for i, v := range [...]uint64{magic, version, slots, TextBytes} {
		le.PutUint64(head[8*i:], v)
	}
	err = f.Truncate(int64(bufferBytes(slots)))
	if err == nil {
		_, err = f.WriteAt(head[:], 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("trace buffer of %d records: %w", slots, err)
	}
	return f, nil
}

// Writer appends to a buffer. Its methods may be called concurrently.
type Writer struct {
	path  string // "" if it came as a file
	mem   []byte
	slots []uint64 // shared
	mask  uint64
	head  *atomic.Uint64
	pid   uint32
	clock Clock

	mu    sync.Mutex
	texts map[textKey]uint32 // written by this process
}

type textKey struct {
	kind TextKind
	id   uint64
	text string
}

// maxTexts bounds what a writer remembers.
const maxTexts = 1 << 16

// Open maps the buffer at path for appending.
func Open(path string) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("trace buffer: %w", err)
	}
	defer f.Close()
	w, err := OpenFile(f, uint32(os.Getpid()))
	if err != nil {
		return nil, err
	}
	w.path = path
	return w, nil
}

// OpenFile maps a buffer for appending in the name of a process. The caller still owns f.
func OpenFile(f *os.File, pid uint32) (*Writer, error) {
	mem, slots, err := mapBuffer(f, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, err
	}
	return &Writer{
		mem: mem, slots: words(mem[SlotsAt:]), mask: slots - 1, head: cell(mem, headAt),
		pid: pid, clock: NewClock(), texts: map[textKey]uint32{},
	}, nil
}

// Share opens the buffer once more, for a process that is to append too. The caller owns the file.
func (w *Writer) Share() (*os.File, error) {
	f, err := os.OpenFile(w.path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("trace buffer: %w", err)
	}
	return f, nil
}

// PID is the process that a writer appends for.
func (w *Writer) PID() uint32 { return w.pid }

// Close unmaps the buffer. Nothing may be appended meanwhile or later.
func (w *Writer) Close() error { return unix.Munmap(w.mem) }

func mapBuffer(f *os.File, prot int) ([]byte, uint64, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("trace buffer: %w", err)
	}
	if info.Size() < headerBytes || info.Size() > int64(bufferBytes(maxSlots)) {
		return nil, 0, fmt.Errorf("%w: %d bytes", ErrBuffer, info.Size())
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, 0, fmt.Errorf("map a trace buffer of %d bytes: %w", info.Size(), err)
	}
	slots, err := checkHeader(mem)
	if err != nil {
		return nil, 0, errors.Join(err, unix.Munmap(mem))
	}
	return mem, slots, nil
}

func checkHeader(mem []byte) (slots uint64, err error) {
	slots = le.Uint64(mem[16:])
	switch {
	case le.Uint64(mem) != magic || le.Uint64(mem[8:]) != version:
		return 0, fmt.Errorf("%w: header % x", ErrBuffer, mem[:16])
	case slots < minSlots || slots > maxSlots || slots&(slots-1) != 0 || le.Uint64(mem[24:]) != TextBytes:
		return 0, fmt.Errorf("%w: %d records, %d bytes of texts", ErrBuffer, slots, le.Uint64(mem[24:]))
	case len(mem) != bufferBytes(slots):
		return 0, fmt.Errorf("%w: %d bytes for %d records", ErrBuffer, len(mem), slots)
	}
	return slots, nil
}

// Slots is how many records the buffer holds.
func (w *Writer) Slots() uint64 { return w.mask + 1 }

// Append writes one record.
func (w *Writer) Append(r *Record) { w.put(w.head.Add(1)-1, r) }

// AppendPair writes two records that follow each other.
func (w *Writer) AppendPair(first, second *Record) {
	n := w.head.Add(2) - 2
	w.put(n, first)
	w.put(n+1, second)
}

func (w *Writer) put(n uint64, r *Record) {
	r.PID = w.pid
	v := r.words()
	at := int(n&w.mask) * slotWords
	done := cell(w.mem, SlotsAt+8*at)
	done.Store(0)
	copy(w.slots[at+1:at+slotWords], v[1:])
	done.Store(n + 1)
}

// Now is the writer's clock: see Clock.
func (w *Writer) Now() int64 { return w.clock.Now() }

// Text writes a name once and returns its number, 0 if there is no room.
func (w *Writer) Text(kind TextKind, id uint64, text string) uint32 {
	if len(text) > maxText {
		text = text[:maxText]
	}
	key := textKey{kind, id, text}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, ok := w.texts[key]; ok {
		return n
	}
	n := w.putText(kind, id, text)
	if len(w.texts) < maxTexts {
		w.texts[key] = n
	}
	return n
}

func (w *Writer) putText(kind TextKind, id uint64, text string) uint32 {
	size := (textHead + len(text) + 7) &^ 7
	tail := cell(w.mem, textTailAt)
	end := tail.Add(uint64(size))
	if end > TextBytes {
		tail.Add(-uint64(size))
		cell(w.mem, textLostAt).Add(1)
		return 0
	}
	at := headerBytes + int(end) - size
	b := w.mem[at : at+size]
	le.PutUint32(b[4:], uint32(kind))
	le.PutUint64(b[8:], id)
	le.PutUint32(b[16:], w.pid)
	copy(b[textHead:], text)
	halfCell(w.mem, at).Store(uint32(len(text)) + 1)
	return uint32(end) - uint32(size) + 1
}

// Note records what was done without, and why.
func (w *Writer) Note(worker uint32, text string) {
	w.Append(&Record{Kind: KindNote, Time: w.Now(), Aux: worker, A: uint64(w.Text(TextDetail, 0, text))})
}

// Clock reads CLOCK_MONOTONIC without a system call.
type Clock struct {
	base time.Time
	ns   int64 // CLOCK_MONOTONIC at base
}

// NewClock relates Go's monotonic clock, which has an origin of its own, to CLOCK_MONOTONIC: of several readings the
// one that took the least time.
func NewClock() Clock {
	var c Clock
	best := time.Duration(1 << 62)
	for range 8 {
		var ts unix.Timespec
		before := time.Now()
		if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
			continue // never: the clock exists and the pointer is ours
		}
		if took := time.Since(before); took < best {
			best = took
			c = Clock{before.Add(took / 2), ts.Nano()}
		}
	}
	return c
}

// Now returns ns of CLOCK_MONOTONIC.
func (c Clock) Now() int64 { return c.ns + int64(time.Since(c.base)) }

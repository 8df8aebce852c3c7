package spill

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// ill is a disk with faults.
type ill struct {
	Linux
	calls    atomic.Int64
	fail     func(call int64) error // which calls fail, counted from 0
	shortest int                    // a write takes no more than this; 0 = all
}

func (d *ill) next() error {
	n := d.calls.Add(1) - 1
	if d.fail == nil {
		return nil
	}
	return d.fail(n)
}

func (d *ill) Open(path string, flags int) (int, error) {
	if err := d.next(); err != nil {
		return -1, err
	}
	return d.Linux.Open(path, flags)
}

func (d *ill) Pwrite(fd int, b []byte, off int64) (int, error) {
	if err := d.next(); err != nil {
		return 0, err
	}
	if d.shortest > 0 {
		b = b[:min(len(b), d.shortest)]
	}
	return d.Linux.Pwrite(fd, b, off)
}

func (d *ill) Pread(fd int, b []byte, off int64) (int, error) {
	if err := d.next(); err != nil {
		return 0, err
	}
	return d.Linux.Pread(fd, b, off)
}

func (d *ill) Sync(fd int) error {
	if err := d.next(); err != nil {
		return err
	}
	return d.Linux.Sync(fd)
}

func (d *ill) Rename(from, to string) error {
	if err := d.next(); err != nil {
		return err
	}
	return d.Linux.Rename(from, to)
}

// rude is a disk that goes around the page cache as file systems may: a read fills all that it was given, with zeros
// behind the file's end. It notes what it was given to write, and refuses what no O_DIRECT takes.
type rude struct {
	Linux
	direct  map[int]bool // by descriptor
	written int64        // the furthest byte
}

func (d *rude) Open(path string, flags int) (int, error) {
	fd, err := d.Linux.Open(path, flags&^unix.O_DIRECT)
	d.direct[fd] = flags&unix.O_DIRECT != 0
	return fd, err
}

func (d *rude) Pread(fd int, b []byte, off int64) (int, error) {
	if d.direct[fd] {
		if len(b)%pageBytes != 0 || off%pageBytes != 0 {
			return 0, unix.EINVAL
		}
		clear(b)
	}
	return d.Linux.Pread(fd, b, off)
}

func (d *rude) Pwrite(fd int, b []byte, off int64) (int, error) {
	if d.direct[fd] && (len(b)%pageBytes != 0 || off%pageBytes != 0) {
		return 0, unix.EINVAL
	}
	d.written = max(d.written, off+int64(len(b)))
	return d.Linux.Pwrite(fd, b, off)
}

// TestNeighbours writes and reads objects in front of others in one page: not a byte behind an object's own goes to its
// file, and not one is changed.
func TestNeighbours(t *testing.T) {
	for _, n := range []int{ChunkBytes, ChunkBytes + 1, 1_100_000, 2*ChunkBytes + 64, 3*ChunkBytes - 64} {
		for name, sys := range map[string]System{"rude": &rude{direct: map[int]bool{}}, "real": Linux{}} {
			t.Run(fmt.Sprintf("%d/%s", n, name), func(t *testing.T) {
				d := openDir(t, 1<<30, sys)
				memory := pages(t, n+pageBytes)
				want, r := bytes.Clone(memory), recordOf(n)
				if err := d.Write(r, Source{Bytes: memory[:n], Aligned: true}, false, nil); err != nil {
					t.Fatal(err)
				}
				if disk, ok := sys.(*rude); ok && disk.written > int64(max(n, len(encoded(t, r)))) {
					t.Errorf("%d bytes were written of an object of %d", disk.written, n)
				}
				clear(memory[:n])
				if err := d.Restore(r.ID, Source{Bytes: memory[:n], Aligned: true}, nil, nil); err != nil {
					t.Fatal(err)
				}
				for i, b := range memory {
					if b != want[i] {
						t.Fatalf("byte %d of memory with an object of %d changed from %d to %d", i, n, want[i], b)
					}
				}
			})
		}
	}
}

// pages gives n bytes that begin at a page, with room to the page's end.
func pages(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, max(n+pageBytes-1, pageBytes)&^(pageBytes-1), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	for i := range b {
		b[i] = byte(i * i >> 7)
	}
	return b[:n]
}

func openDir(t testing.TB, limit uint64, sys System) *Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "objects"), limit, sys)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func recordOf(n int) *Record {
	return &Record{
		ID: object.NewID(), SizeBytes: uint64(n), Tenant: "uid:1", Name: "näme", Class: object.Persisted,
		Meta: []byte{0, 1}, Labels: map[string]string{"k": "v"},
		Created: time.Unix(1, 2).UTC(), Sealed: time.Unix(3, 4).UTC(), CreatorPID: 7, Creator: "prog",
	}
}

func encoded(t testing.TB, r *Record) []byte {
	t.Helper()
	b, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWriteAndRestore(t *testing.T) {
	d := openDir(t, 1<<30, nil)
	for _, n := range []int{0, 1, pageBytes, ChunkBytes - 1, ChunkBytes, 3*ChunkBytes + 17} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			b, r := pages(t, n), recordOf(n)
			if err := d.Write(r, Source{Bytes: b, Aligned: true}, true, nil); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(d.file(r.ID, bytesSuffix)); err != nil || info.Size() != int64(n) ||
				info.Mode().Perm() != 0o600 {
				t.Errorf("file %v, %v", info, err)
			}
			for _, aligned := range []bool{true, false} {
				got := pages(t, n)
				clear(got)
				if err := d.Restore(r.ID, Source{Bytes: got, Aligned: aligned}, nil, nil); err != nil ||
					!bytes.Equal(got, b) {
					t.Fatalf("aligned %v: %v", aligned, err)
				}
			}
			for _, cut := range [][2]int{{0, n}, {n / 2, n / 3}, {n, 0}} {
				got, err := d.ReadRange(r.ID, uint64(cut[0]), uint64(cut[1]))
				if err != nil || !bytes.Equal(got, b[cut[0]:][:cut[1]]) {
					t.Fatalf("range %v: %v", cut, err)
				}
			}
			if _, err := d.ReadRange(r.ID, 1, 1<<63); !errors.Is(err, object.ErrInvalid) {
				t.Errorf("a range beyond the end: %v", err)
			}
			loaded, damaged, err := d.Load()
			if err != nil || len(damaged) != 0 || len(loaded) != 1 ||
				!bytes.Equal(encoded(t, loaded[0]), encoded(t, r)) {
				t.Errorf("loaded %+v, %v, %v; want %+v", loaded, damaged, err, r)
			}
			d.giveBack(r.SizeBytes) // Load charged it a second time
			d.Remove(r.ID, r.SizeBytes)
			if d.TakenBytes() != 0 {
				t.Errorf("%d bytes are still charged", d.TakenBytes())
			}
		})
	}
}

// TestEachCallFails fails the first call, then the second, … : every time nothing is left and the next object is well.
func TestEachCallFails(t *testing.T) {
	for _, fault := range []error{unix.ENOSPC, unix.EIO} {
		want := error(object.ErrStorage)
		if fault == unix.ENOSPC {
			want = object.ErrFull
		}
		for bad := int64(0); ; bad++ {
			sys := &ill{}
			d := openDir(t, 1<<30, sys)
			sys.fail = func(call int64) error {
				if call == bad {
					return fault
				}
				return nil
			}
			r, b := recordOf(2*ChunkBytes), pages(t, 2*ChunkBytes)
			err := d.Write(r, Source{Bytes: b, Aligned: true}, true, nil)
			if sys.calls.Load() <= bad {
				if err != nil {
					t.Fatal(err)
				}
				break
			}
			if !errors.Is(err, want) || d.TakenBytes() != 0 {
				t.Fatalf("call %d: %v, %d bytes charged", bad, err, d.TakenBytes())
			}
			_ = os.Remove(filepath.Join(d.path, markName)) // it stays
			if left, _ := os.ReadDir(d.path); len(left) != 0 {
				t.Fatalf("call %d leaves %v", bad, left)
			}
			if err := d.Write(r, Source{Bytes: b}, false, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestShortWritesGoOn(t *testing.T) {
	d := openDir(t, 1<<30, &ill{shortest: 3 * pageBytes})
	r, b := recordOf(ChunkBytes+5), pages(t, ChunkBytes+5)
	if err := d.Write(r, Source{Bytes: b, Aligned: true}, false, nil); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(b))
	if err := d.Restore(r.ID, Source{Bytes: got}, nil, nil); err != nil || !bytes.Equal(got, b) {
		t.Error(err)
	}
}

// TestBitFlips turns one bit at a time: each is the error of that object, and of the chunk that it is in.
func TestBitFlips(t *testing.T) {
	d := openDir(t, 1<<30, nil)
	r, b := recordOf(2*ChunkBytes), pages(t, 2*ChunkBytes)
	if err := d.Write(r, Source{Bytes: b}, false, nil); err != nil {
		t.Fatal(err)
	}
	flip := func(path string, at int64) {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content[at] ^= 1
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, record := d.file(r.ID, bytesSuffix), d.file(r.ID, recordSuffix)
	flip(data, ChunkBytes+99)
	if err := d.Restore(r.ID, Source{Bytes: make([]byte, len(b))}, nil, nil); !errors.Is(err, object.ErrStorage) {
		t.Errorf("a flipped bit: %v", err)
	}
	// what is kept while a slow peer takes it is what that is charged for, and not the chunks that were read for it
	if got, err := d.ReadRange(r.ID, 5, 10); err != nil || !bytes.Equal(got, b[5:15]) || cap(got) > 64 {
		t.Errorf("the sound chunk: %v", err)
	}
	flip(data, ChunkBytes+99)
	info, _ := os.Stat(record)
	for at := int64(0); at < info.Size(); at += 13 {
		flip(record, at)
		if err := d.Restore(r.ID, Source{Bytes: make([]byte, len(b))}, nil, nil); !errors.Is(err, object.ErrStorage) {
			t.Fatalf("a bit of the record at %d: %v", at, err)
		}
		flip(record, at)
	}
	flip(record, 40)
	if loaded, damaged, err := d.Load(); err != nil || len(loaded) != 0 || len(damaged) != 1 {
		t.Errorf("loaded %v, %v, %v", loaded, damaged, err)
	}
	flip(record, 40)
	if err := os.Truncate(data, ChunkBytes+1); err != nil {
		t.Fatal(err)
	}
	if err := d.Restore(r.ID, Source{Bytes: make([]byte, len(b))}, nil, nil); !errors.Is(err, object.ErrStorage) {
		t.Errorf("a file cut short: %v", err)
	}
}

func TestLimit(t *testing.T) {
	d := openDir(t, 3*pageBytes, nil)
	a := recordOf(10)
	if err := d.Write(a, Source{Bytes: make([]byte, 10)}, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := d.Write(recordOf(10), Source{Bytes: make([]byte, 10)}, false, nil); !errors.Is(err, object.ErrFull) {
		t.Errorf("beyond the limit: %v", err)
	}
	d.Remove(a.ID, 10)
	if err := d.Write(recordOf(10), Source{Bytes: make([]byte, 10)}, false, nil); err != nil {
		t.Error(err)
	}
}

func TestStraysAreCleared(t *testing.T) {
	d := openDir(t, 1<<20, nil)
	for _, suffix := range []string{bytesSuffix, newSuffix} {
		if err := os.WriteFile(d.file(object.NewID(), suffix), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := d.Load(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(d.path); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func FuzzRecord(f *testing.F) {
	r := recordOf(2 * ChunkBytes)
	r.Sums = make([]byte, 16)
	whole, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	for i := range len(whole) {
		f.Add(whole[:i])
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			if !errors.Is(err, object.ErrStorage) {
				t.Fatal(err)
			}
			return
		}
		again, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeRecord(again); err != nil || !bytes.Equal(encoded(t, back), encoded(t, r)) {
			t.Fatalf("%+v, %v", back, err)
		}
	})
}

// Package spill keeps sealed objects in files, one directory for all: ID.bytes has the object's bytes and nothing else,
// ID.record what is known of it, with a checksum of each chunk. The record comes last and by renaming, so an object is
// on disk whole or not at all. Files are the daemon's user's alone.
//
// It trusts nobody's disk: what comes back is checked against the record, and a fault is the error of that object alone
// (object.ErrStorage; object.ErrFull where there is no room). Large objects go around the page cache (O_DIRECT) where
// the file system can: memory that is short is not spent on a second copy of what leaves it. That goes by whole pages,
// and other objects begin in an object's last page: only whole pages go that way, and what is left over goes through
// the page cache, byte by byte. Nothing beyond an object's bytes is ever read or written.
//
// Locks: Dir.mu is a leaf and guards the room taken; no file is touched under it. Dir.mark is held while two files are
// made (mark.go). At most Parallel transfers run at once, and those who ask for them take turns (turns.go).
package spill

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"tendril/store/object"
)

const (
	// Parallel is how many transfers run at once: a disk wants some requests in flight, memory bandwidth not many.
	Parallel = 4
	// directFrom is the size from which the page cache is avoided; below it opening and rounding cost more than it
	// saves.
	directFrom = 1 << 20
	pageBytes  = 4096
	// recordRoom is charged for a record's file.
	recordRoom = pageBytes

	bytesSuffix  = ".bytes"
	recordSuffix = ".record"
	newSuffix    = ".new"
)

// errStopped is what a transfer ends with that its caller gave up.
var errStopped = fmt.Errorf("%w: the transfer was cancelled", object.ErrTimeout)

// Dir is a directory of objects. Safe for concurrent use; two calls for one object must not overlap, except reads.
type Dir struct {
	sys   System // immutable
	path  string // immutable
	limit uint64 // immutable: bytes
	turns *turns // immutable

	mu    sync.Mutex
	taken uint64

	mark   sync.Mutex // held while the marks are made
	marked bool       // under mark: they are there
}

// Open makes the directory where it is missing (mode 0700) and bounds what is kept there to limit bytes. sys nil is
// Linux.
func Open(path string, limit uint64, sys System) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("spill directory: %w", err)
	}
	if sys == nil {
		sys = Linux{}
	}
	return &Dir{sys: sys, path: path, limit: limit, turns: newTurns(Parallel)}, nil
}

// TakenBytes gives the room that objects take now; LimitBytes what they may.
func (d *Dir) TakenBytes() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.taken
}

// LimitBytes gives the bound.
func (d *Dir) LimitBytes() uint64 { return d.limit }

// RoomFor gives the room that an object of size bytes takes.
func RoomFor(size uint64) uint64 { return (size+pageBytes-1)&^(pageBytes-1) + recordRoom }

func (d *Dir) reserve(size uint64) error {
	n := RoomFor(size)
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > d.limit || d.taken > d.limit-n {
		return fmt.Errorf("%w: %d of %d bytes of spill space are in use and %d more are needed: delete objects, or give "+
			"the daemon more (--spill)", object.ErrFull, d.taken, d.limit, n)
	}
	d.taken += n
	return nil
}

func (d *Dir) giveBack(size uint64) {
	d.mu.Lock()
	d.taken -= RoomFor(size)
	d.mu.Unlock()
}

func (d *Dir) file(id object.ID, suffix string) string {
	return filepath.Join(d.path, id.String()+suffix)
}

// Source is an object's bytes in memory.
type Source struct {
	Bytes   []byte
	Aligned bool   // Bytes begins at a page
	Sums    []byte // what a Write must find; nil: not known
}

// DamageError says that an object's bytes do not have the sums that they must have; it is an object.ErrStorage.
type DamageError struct {
	ID         object.ID
	have, want []byte
}

// Error names the first chunk that differs.
func (e *DamageError) Error() string {
	at := 0
	for at+8 <= min(len(e.have), len(e.want)) && bytes.Equal(e.have[at:at+8], e.want[at:at+8]) {
		at += 8
	}
	if at+8 > min(len(e.have), len(e.want)) {
		return fmt.Sprintf("%v: object %s is damaged: %d checksums instead of %d", object.ErrStorage, e.ID,
			len(e.have)/8, len(e.want)/8)
	}
	return fmt.Sprintf("%v: object %s is damaged: the checksum of the MiB at byte %d is %016x, but was %016x",
		object.ErrStorage, e.ID, at/8*ChunkBytes, binary.LittleEndian.Uint64(e.have[at:]),
		binary.LittleEndian.Uint64(e.want[at:]))
}

// Unwrap gives the sentinel.
func (e *DamageError) Unwrap() error { return object.ErrStorage }

// Compare says where sums differ from what they must be: a *DamageError.
func Compare(id object.ID, have, want []byte) error {
	if bytes.Equal(have, want) {
		return nil
	}
	return &DamageError{id, have, want}
}

// Write puts an object on the disk and fills r.Sums. With durable it survives the machine's end once Write has come
// back. On an error nothing of it is left. Bytes that do not have src.Sums get no record, not for a moment: a
// *DamageError. stop, which may be nil, is asked between chunks.
func (d *Dir) Write(r *Record, src Source, durable bool, stop func() bool) error {
	return d.For("").Write(r, src, durable, stop)
}

// write is Write of what has room and a turn.
func (d *Dir) write(r *Record, src Source, durable bool, stop func() bool) error {
	err := d.writeBytes(r, src, durable, stop)
	if err == nil && src.Sums != nil { // a daemon that is killed later must not leave a record that calls them sound
		err = Compare(r.ID, r.Sums, src.Sums)
	}
	if err == nil {
		err = d.writeRecord(r, durable)
	}
	if err != nil {
		_ = d.unlink(r.ID) // the first error is the one to tell
		d.giveBack(r.SizeBytes)
		if damage := (*DamageError)(nil); errors.As(err, &damage) {
			return err // it names the object
		}
		return fmt.Errorf("object %s to disk: %w", r.ID, err)
	}
	return nil
}

// Update writes an object's record again: its name, class or labels changed. r must come from Read or Load.
func (d *Dir) Update(r *Record) error { return d.For("").Update(r) }

func (d *Dir) update(r *Record) error {
	durable := r.Class == object.Persisted
	err := error(nil)
	if durable {
		err = d.syncBytes(r.ID) // it may have come here without
	}
	if err == nil {
		err = d.writeRecord(r, durable)
	}
	if err != nil {
		return fmt.Errorf("record of object %s: %w", r.ID, err)
	}
	return nil
}

// syncBytes makes an object's bytes durable.
func (d *Dir) syncBytes(id object.ID) error {
	fd, err := d.sys.Open(d.file(id, bytesSuffix), unix.O_RDONLY)
	if err != nil {
		return storage("open", err)
	}
	err = d.sys.Sync(fd)
	if err = errors.Join(err, d.sys.Close(fd)); err != nil {
		return storage("fsync", err)
	}
	return nil
}

// storage wraps what the file system answered in the sentinel that it means.
func storage(what string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %s: %w", object.ErrFull, what, err)
	}
	return fmt.Errorf("%w: %s: %w", object.ErrStorage, what, err)
}

func (d *Dir) writeBytes(r *Record, src Source, durable bool, stop func() bool) (err error) {
	if uint64(len(src.Bytes)) != r.SizeBytes {
		return fmt.Errorf("%w: %d bytes of an object of %d", object.ErrInternal, len(src.Bytes), r.SizeBytes)
	}
	f, err := d.open(r.ID, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, src)
	if err != nil {
		return storage("open", err)
	}
	defer func() {
		if e := f.close(); e != nil && err == nil {
			err = storage("close", e)
		}
	}()
	if len(src.Bytes) > 0 {
		if err := d.sys.Reserve(f.fd, int64(len(src.Bytes))); err != nil {
			return storage("room for the bytes", err)
		}
	}
	r.Sums = make([]byte, 0, 8*chunks(r.SizeBytes))
	for at := 0; at < len(src.Bytes); at += ChunkBytes {
		if stop != nil && stop() {
			return errStopped
		}
		chunk := src.Bytes[at:min(at+ChunkBytes, len(src.Bytes))]
		r.Sums = binary.LittleEndian.AppendUint64(r.Sums, xxhash.Sum64(chunk))
		if err := f.each(chunk, int64(at), d.writeFull); err != nil {
			return storage("write", err)
		}
	}
	if durable {
		if err := d.sys.Sync(f.fd); err != nil {
			return storage("fsync", err)
		}
	}
	return nil
}

// bytesFile is an object's bytes, open. Where it is read or written around the page cache, what is no whole page is
// not.
type bytesFile struct {
	sys    System
	fd     int
	direct int // -1: none
}

// open opens an object's bytes, around the page cache where memory allows it and the file system can.
func (d *Dir) open(id object.ID, flags int, memory Source) (bytesFile, error) {
	path := d.file(id, bytesSuffix)
	fd, err := d.sys.Open(path, flags)
	f := bytesFile{sys: d.sys, fd: fd, direct: -1}
	if err != nil || !memory.Aligned || len(memory.Bytes) < directFrom {
		return f, err
	}
	f.direct, err = d.sys.Open(path, flags&^(unix.O_CREAT|unix.O_TRUNC)|unix.O_DIRECT)
	if err == nil || errors.Is(err, unix.EINVAL) {
		return f, nil
	}
	_ = d.sys.Close(fd) // the first error is the one to tell
	return f, err
}

func (f bytesFile) close() error {
	err := f.sys.Close(f.fd)
	if f.direct >= 0 {
		err = errors.Join(err, f.sys.Close(f.direct))
	}
	return err
}

// each moves b at off: its whole pages by the one way, the rest by the other.
func (f bytesFile) each(b []byte, off int64, move func(fd int, b []byte, off int64) error) error {
	if f.direct < 0 {
		return move(f.fd, b, off)
	}
	whole := len(b) &^ (pageBytes - 1)
	if err := move(f.direct, b[:whole], off); err != nil {
		return err
	}
	return move(f.fd, b[whole:], off+int64(whole))
}

// writeFull goes on after a short write; one that makes no progress is ENOSPC, as POSIX has it for a full disk.
func (d *Dir) writeFull(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := d.sys.Pwrite(fd, b, off)
		if err == nil && n <= 0 {
			err = unix.ENOSPC
		}
		if err != nil {
			return err
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// writeRecord puts the record beside the bytes, whole or not at all.
func (d *Dir) writeRecord(r *Record, durable bool) error {
	if durable {
		if err := d.markKept(); err != nil {
			return storage("record", err)
		}
	}
	b, err := r.encode()
	if err != nil {
		return fmt.Errorf("%w: %w", object.ErrInternal, err)
	}
	if len(b) > maxRecordBytes {
		return fmt.Errorf("%w: a record of %d bytes, at most %d", object.ErrUnsupported, len(b), maxRecordBytes)
	}
	fresh := d.file(r.ID, newSuffix)
	if err := d.writeFile(fresh, b, durable); err != nil {
		_ = d.sys.Remove(fresh) // the first error is the one to tell
		return storage("record", err)
	}
	if err := d.sys.Rename(fresh, d.file(r.ID, recordSuffix)); err != nil {
		_ = d.sys.Remove(fresh)
		return storage("record", err)
	}
	if durable {
		return d.syncDir(d.path)
	}
	return nil
}

func (d *Dir) writeFile(path string, b []byte, durable bool) (err error) {
	fd, err := d.sys.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.sys.Close(fd)) }()
	if err := d.writeFull(fd, b, 0); err != nil || !durable {
		return err
	}
	return d.sys.Sync(fd)
}

// syncDir makes renames durable.
func (d *Dir) syncDir(path string) error {
	fd, err := d.sys.Open(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return storage("directory", err)
	}
	err = d.sys.Sync(fd)
	if err = errors.Join(err, d.sys.Close(fd)); err != nil {
		return storage("directory", err)
	}
	return nil
}

// Remove takes an object of size bytes off the disk and gives its room back. What cannot be removed is charged no more,
// either; an error says that the next start would find it.
func (d *Dir) Remove(id object.ID, size uint64) error {
	err := d.unlink(id)
	d.giveBack(size)
	return err
}

// RemoveAgain takes a file off the disk that Remove could not, which is charged no more.
func (d *Dir) RemoveAgain(id object.ID) error { return d.unlink(id) }

// unlink's error says that a file stayed: of both, the next start would find an object.
func (d *Dir) unlink(id object.ID) error {
	var faults []error
	for _, suffix := range []string{recordSuffix, bytesSuffix} { // without either there is no object
		if err := d.sys.Remove(d.file(id, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, storage("remove", err))
		}
	}
	return errors.Join(faults...)
}

// Load reads every record, gives the objects their room and clears what is no whole object. Records that cannot be
// read are left where they are, for a person to look at: damaged says why, an error each.
func (d *Dir) Load() (records []*Record, damaged []error, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, nil, fmt.Errorf("spill directory: %w", err)
	}
	known, lengths := make(map[string]bool), lengthsOf(entries)
	for _, e := range entries {
		stem, isRecord := strings.CutSuffix(e.Name(), recordSuffix)
		if !isRecord {
			continue
		}
		known[stem] = true
		r, err := d.Read(stem)
		if err == nil {
			err = r.matches(lengths[stem])
		}
		if err != nil {
			damaged = append(damaged, fmt.Errorf("%s: %w", e.Name(), err))
			continue
		}
		records = append(records, r)
		d.mu.Lock()
		d.taken += RoomFor(r.SizeBytes) // above the limit, too: what is there is there
		d.mu.Unlock()
	}
	d.clearStrays(entries, known)
	if slices.ContainsFunc(records, func(r *Record) bool { return r.Class == object.Persisted }) {
		err = d.markKept() // a daemon of an earlier release put them there
	}
	return records, damaged, err
}

// lengthsOf gives the lengths of objects' bytes, by the object.
func lengthsOf(entries []os.DirEntry) map[string]int64 {
	lengths := make(map[string]int64)
	for _, e := range entries {
		if stem, isBytes := strings.CutSuffix(e.Name(), bytesSuffix); isBytes {
			if info, err := e.Info(); err == nil {
				lengths[stem] = info.Size()
			}
		}
	}
	return lengths
}

// matches says what is wrong with a file of n bytes; 0: there is none.
func (r *Record) matches(n int64) error {
	if uint64(n) == r.SizeBytes {
		return nil
	}
	return fmt.Errorf("%w: object %s has %d bytes, and %d of them are on disk", object.ErrStorage, r.ID, r.SizeBytes, n)
}

// clearStrays removes what a daemon left that ended in the middle of a Write.
func (d *Dir) clearStrays(entries []os.DirEntry, known map[string]bool) {
	for _, e := range entries {
		stem, isBytes := strings.CutSuffix(e.Name(), bytesSuffix)
		if isBytes && !known[stem] || strings.HasSuffix(e.Name(), newSuffix) {
			_ = d.sys.Remove(filepath.Join(d.path, e.Name())) // it is tried again at the next start
		}
	}
}

// Read reads the record of the object whose id has these digits.
func (d *Dir) Read(digits string) (*Record, error) {
	id, err := object.ParseID(digits)
	if err != nil {
		return nil, err
	}
	fd, err := d.sys.Open(d.file(id, recordSuffix), unix.O_RDONLY)
	if err != nil {
		return nil, storage("record", err)
	}
	defer d.sys.Close(fd) // read only: nothing to lose
	var b []byte
	part := make([]byte, 64<<10)
	for {
		n, err := d.sys.Pread(fd, part, int64(len(b)))
		if err != nil {
			return nil, storage("record", err)
		}
		if n == 0 {
			break
		}
		if b = append(b, part[:n]...); len(b) > maxRecordBytes {
			return nil, fmt.Errorf("%w: a record of more than %d bytes", object.ErrStorage, maxRecordBytes)
		}
	}
	r, err := decodeRecord(b)
	if err == nil && r.ID != id {
		err = fmt.Errorf("%w: the record is object %s's", object.ErrStorage, r.ID)
	}
	return r, err
}

// Restore reads an object's bytes into dst, which has its size, and checks them. dst's contents are undefined after an
// error. Where sums is not nil they are what the record's must be. stop, which may be nil, is asked between chunks.
func (d *Dir) Restore(id object.ID, dst Source, sums []byte, stop func() bool) error {
	return d.For("").Restore(id, dst, sums, stop)
}

func (d *Dir) restore(id object.ID, dst Source, sums []byte, stop func() bool) error {
	r, err := d.readAs(id, sums)
	if err == nil && r.SizeBytes != uint64(len(dst.Bytes)) {
		err = fmt.Errorf("%w: the record says %d bytes, the table %d", object.ErrStorage, r.SizeBytes, len(dst.Bytes))
	}
	if err != nil {
		return fmt.Errorf("object %s from disk: %w", id, err)
	}
	if err := d.readChunks(r, dst, 0, stop); err != nil {
		return fmt.Errorf("object %s from disk: %w", id, err)
	}
	return nil
}

// readAs is Read of a record that must have these sums, unless they are nil.
func (d *Dir) readAs(id object.ID, sums []byte) (*Record, error) {
	r, err := d.Read(id.String())
	if err == nil && sums != nil && !bytes.Equal(r.Sums, sums) {
		err = fmt.Errorf("%w: object %s is damaged: its record and its bytes have different checksums",
			object.ErrStorage, id)
	}
	return r, err
}

// readChunks reads whole chunks from the first one on until dst is full and checks each.
func (d *Dir) readChunks(r *Record, dst Source, first uint64, stop func() bool) error {
	f, err := d.open(r.ID, unix.O_RDONLY, dst)
	if err != nil {
		return storage("open", err)
	}
	defer f.close() // read only: nothing to lose
	for at := 0; at < len(dst.Bytes); at += ChunkBytes {
		if stop != nil && stop() {
			return errStopped
		}
		chunk := dst.Bytes[at:min(at+ChunkBytes, len(dst.Bytes))]
		number := first + uint64(at)/ChunkBytes
		if err := f.each(chunk, int64(number*ChunkBytes), d.readFull); err != nil {
			return err
		}
		if have, want := xxhash.Sum64(chunk), r.sum(number); have != want {
			return fmt.Errorf("%w: checksum of chunk %d is %016x, was %016x when it was written", object.ErrStorage,
				number, have, want)
		}
	}
	return nil
}

// readFull fills b.
func (d *Dir) readFull(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := d.sys.Pread(fd, b, off)
		if err != nil {
			return storage("read", err)
		}
		if n <= 0 {
			return fmt.Errorf("%w: the file ends at byte %d", object.ErrStorage, off)
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// ReadRange gives n bytes from off on of an object on disk, checked. The range must lie in the object.
func (d *Dir) ReadRange(id object.ID, off, n uint64) ([]byte, error) {
	return d.For("").ReadRange(id, off, n)
}

func (d *Dir) readRange(id object.ID, off, n uint64, stop func() bool) ([]byte, error) {
	r, err := d.Read(id.String())
	if err != nil {
		return nil, fmt.Errorf("object %s from disk: %w", id, err)
	}
	if off > r.SizeBytes || n > r.SizeBytes-off {
		return nil, fmt.Errorf("%w: bytes [%d, +%d) of an object of %d", object.ErrInvalid, off, n, r.SizeBytes)
	}
	if n == 0 {
		return nil, nil
	}
	first, last := off/ChunkBytes, (off+n-1)/ChunkBytes
	b := make([]byte, min((last+1)*ChunkBytes, r.SizeBytes)-first*ChunkBytes)
	if err := d.readChunks(r, Source{Bytes: b}, first, stop); err != nil {
		return nil, fmt.Errorf("object %s from disk: %w", id, err)
	}
	if b = b[off-first*ChunkBytes:][:n]; cap(b) > 2*len(b) { // a caller that keeps little must not keep whole chunks
		b = bytes.Clone(b)
	}
	return b, nil
}

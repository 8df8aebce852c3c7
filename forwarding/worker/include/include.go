// Package include gives a compiler the files that a client's sources include: it keeps them by hash, and lays them out
// for one build in a directory that stands for the root of the client's files (clwire/PROTOCOL.md, "Files that sources
// include").
//
// Trust: manifests and contents come from the client and are checked; the directory is its tenant's own, in the sandbox
// that the compiler runs in. A path can name nothing outside the layout: that holds directories and regular files only.
//
// Locks: Store.mu is a leaf. Layout.Run may change the whole process's working directory where a thread cannot have its
// own; builds then take turns.
package include

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// ErrManifest is wrapped by every complaint about what a client sent.
var ErrManifest = errors.New("bad set of files")

const (
	maxDirectories = 64 << 10  // of one layout
	keptBytes      = 256 << 20 // of files kept by hash
	staleAfter     = time.Hour // a layout that a killed worker left
	layoutPrefix   = "include-"
)

// Store keeps files by hash below a directory. Several processes may share it.
type Store struct {
	kept, temp string // immutable: directories of files, of layouts

	mu      sync.Mutex
	entered bool // Run changes the process's directory: one at a time
	turn    *sync.Cond
}

// NewStore keeps files in dir/include and lays them out in dir/tmp, where it removes what is stale. It makes
// directories when they are needed.
func NewStore(dir string) *Store {
	s := &Store{kept: filepath.Join(dir, "include"), temp: filepath.Join(dir, "tmp")}
	s.turn = sync.NewCond(&s.mu)
	left, _ := filepath.Glob(filepath.Join(s.temp, layoutPrefix+"*")) // the pattern is well formed
	for _, path := range left {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > staleAfter {
			if lock, err := lockDirectory(path); err == nil {
				(&Layout{base: path, lock: lock}).Remove()
			}
		}
	}
	return s
}

// ParseManifest decodes and checks a manifest.
func ParseManifest(b []byte) (*clwire.FilesManifest, error) {
	var m clwire.FilesManifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	if len(m.Files) > clwire.MaxFiles {
		return nil, fmt.Errorf("%w: %d files, the limit is %d", ErrManifest, len(m.Files), clwire.MaxFiles)
	}
	if err := checkPath(m.Dir); err != nil {
		return nil, err
	}
	var total uint64
	for i := range m.Files {
		f := &m.Files[i]
		if err := checkPath(f.Path); err != nil {
			return nil, err
		}
		if total += f.Bytes; f.Bytes > clwire.MaxFileBytes || total > clwire.MaxFileBytes {
			return nil, fmt.Errorf("%w: more than %d bytes", ErrManifest, clwire.MaxFileBytes)
		}
		if len(f.SHA256) != sha256.Size {
			return nil, fmt.Errorf("%w: a hash of %d bytes", ErrManifest, len(f.SHA256))
		}
	}
	return &m, nil
}

func checkPath(p []byte) error {
	if len(p) == 0 || len(p) > clwire.MaxPath || p[0] != '/' || bytes.IndexByte(p, 0) >= 0 {
		return fmt.Errorf("%w: path %.100q", ErrManifest, p)
	}
	return nil
}

func (s *Store) path(hash []byte) string {
	name := hex.EncodeToString(hash)
	return filepath.Join(s.kept, name[:2], name)
}

// Missing returns the positions of the files that the store does not have, each hash once.
func (s *Store) Missing(m *clwire.FilesManifest) (missing []uint32) {
	seen := map[string]bool{}
	now := time.Now()
	for i := range m.Files {
		f := &m.Files[i]
		if seen[string(f.SHA256)] {
			continue
		}
		seen[string(f.SHA256)] = true
		path := s.path(f.SHA256)
		if info, err := os.Stat(path); err != nil || uint64(info.Size()) != f.Bytes {
			missing = append(missing, uint32(i))
			continue
		}
		_ = os.Chtimes(path, now, now) // only trim looks at it
	}
	return missing
}

// Put takes the missing files' contents, one after another in data.
func (s *Store) Put(m *clwire.FilesManifest, missing []uint32, data []byte) error {
	for _, i := range missing {
		f := &m.Files[i]
		if f.Bytes > uint64(len(data)) {
			return fmt.Errorf("%w: the contents end before %.100q", ErrManifest, f.Path)
		}
		content := data[:f.Bytes]
		data = data[f.Bytes:]
		if sum := sha256.Sum256(content); !bytes.Equal(sum[:], f.SHA256) {
			return fmt.Errorf("%w: %.100q is not what its hash says", ErrManifest, f.Path)
		}
		if err := s.keep(s.path(f.SHA256), content); err != nil {
			return err
		}
	}
	if len(data) > 0 {
		return fmt.Errorf("%w: %d bytes too many", ErrManifest, len(data))
	}
	return s.trim()
}

// keep writes a file whole or not at all.
func (s *Store) keep(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep an included file: %w", err)
	}
	f, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return fmt.Errorf("keep an included file: %w", err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("keep an included file: %w", err)
	}
	return nil
}

// trim removes the files that were not asked for longest, down to half of keptBytes, if there are more.
func (s *Store) trim() error {
	type file struct {
		path  string
		bytes int64
		used  time.Time
	}
	var files []file
	var total int64
	err := filepath.WalkDir(s.kept, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // another worker removes as well
		}
		if info, err := d.Info(); err == nil {
			files = append(files, file{path, info.Size(), info.ModTime()})
			total += info.Size()
		}
		return nil
	})
	if total <= keptBytes || err != nil {
		return err
	}
	slices.SortFunc(files, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range files {
		if total <= keptBytes/2 {
			break
		}
		os.Remove(f.path)
		total -= f.bytes
	}
	return nil
}

// Layout is a directory of files to include. Its path comes from what is in it, because drivers look compiled programs
// up by their options too, and those name directories of the layout. So builds of one set of files share it, also those
// of other processes: each holds a shared lock on the directory, and who can lock it alone removes it.
type Layout struct {
	store *Store
	base  string   // holds FilesAlias
	lock  *os.File // base, locked
	root  string   // stands for the client's root
	dir   string   // stands for the client's working directory
	made  int      // directories
}

// Lay makes the layout of a manifest. The caller removes it.
func (s *Store) Lay(m *clwire.FilesManifest) (*Layout, error) {
	name, err := layoutName(m)
	if err == nil {
		err = os.MkdirAll(s.temp, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("lay out included files: %w", err)
	}
	base := filepath.Join(s.temp, name)
	l := &Layout{store: s, base: base, root: filepath.Join(base, clwire.FilesAlias)}
	if l.lock, err = lockDirectory(base); err != nil {
		return nil, fmt.Errorf("lay out included files: %w", err)
	}
	if err := l.fill(m); err != nil {
		l.Remove()
		return nil, err
	}
	return l, nil
}

// layoutName is the same for the same files, in whatever order, seen from the same working directory.
func layoutName(m *clwire.FilesManifest) (string, error) {
	sorted := clwire.FilesManifest{Dir: m.Dir, Files: slices.Clone(m.Files)}
	slices.SortStableFunc(sorted.Files, func(a, b clwire.FileEntry) int { return bytes.Compare(a.Path, b.Path) })
	text, err := json.Marshal(&sorted)
	sum := sha256.Sum256(text)
	return layoutPrefix + hex.EncodeToString(sum[:16]), err
}

// lockDirectory makes a directory, or finds it, and locks it against its removal.
func lockDirectory(path string) (*os.File, error) {
	for {
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0) // a link to nowhere is there
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH)
		var locked, there os.FileInfo
		if err == nil {
			locked, err = f.Stat()
		}
		if err == nil {
			if there, err = os.Lstat(path); err == nil && os.SameFile(locked, there) {
				now := time.Now()
				_ = os.Chtimes(path, now, now) // only NewStore looks at it
				return f, nil
			}
		}
		f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
}

func (l *Layout) fill(m *clwire.FilesManifest) error {
	if err := os.Mkdir(l.root, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("lay out included files: %w", err)
	}
	dir, err := l.directory(string(m.Dir))
	if err != nil {
		return err
	}
	l.dir = dir
	for i := range m.Files {
		f := &m.Files[i]
		at := strings.LastIndexByte(string(f.Path), '/')
		name := string(f.Path[at+1:])
		if name == "" || name == "." || name == ".." {
			return fmt.Errorf("%w: path %.100q names a directory", ErrManifest, f.Path)
		}
		dir, err := l.directory(string(f.Path[:at]))
		if err != nil {
			return err
		}
		content, err := os.ReadFile(l.store.path(f.SHA256))
		if err == nil && uint64(len(content)) != f.Bytes {
			err = fmt.Errorf("%w: %.100q has %d bytes, not %d", ErrManifest, f.Path, len(content), f.Bytes)
		}
		if err == nil {
			err = l.place(filepath.Join(dir, name), content)
		}
		if err != nil {
			return fmt.Errorf("lay out an included file: %w", err)
		}
	}
	return nil
}

// place writes a file, unless another build of the same set has.
func (l *Layout) place(path string, content []byte) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() == int64(len(content)) {
		return nil
	}
	return l.store.keep(path, content)
}

// directory makes every directory that a path goes through, as its spelling has it, and returns the last.
func (l *Layout) directory(path string) (string, error) {
	at := l.root
	for part := range strings.SplitSeq(path, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			if at != l.root {
				at = filepath.Dir(at)
			}
			continue
		}
		at = filepath.Join(at, part)
		err := os.Mkdir(at, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue // a file there fails what comes next
		}
		if l.made++; err == nil && l.made > maxDirectories {
			err = fmt.Errorf("%w: more than %d directories", ErrManifest, maxDirectories)
		}
		if err != nil {
			return "", fmt.Errorf("lay out included files: %w", err)
		}
	}
	return at, nil
}

// Remove ends the use of the layout. It goes with its last user.
func (l *Layout) Remove() {
	if unix.Flock(int(l.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		os.RemoveAll(l.base)
	}
	l.lock.Close()
}

// Options puts the layout's directories into a client's options. A nil layout has none.
func (l *Layout) Options(options string) string {
	if l == nil {
		return options
	}
	return strings.NewReplacer(clwire.FilesRoot, l.root, clwire.FilesBase, l.base).Replace(options)
}

// Log turns the layout's paths in a build log back into the client's.
func (l *Layout) Log(log string) string {
	if l != nil {
		log = strings.ReplaceAll(log, l.root+"/", "/")
	}
	return strings.ReplaceAll(log, clwire.FilesAlias+"/", "/")
}

// Run calls f, which may block, in the layout's working directory: on a thread that has one of its own, or, where the
// kernel refuses that, with the process's directory changed.
func (l *Layout) Run(f func() error) error {
	if l == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FS); err == nil {
			if err = os.Chdir(l.dir); err == nil {
				err = f()
			}
			done <- err
			return
		}
		done <- l.store.takeTurn(l.dir, f)
	}()
	return <-done
}

// takeTurn changes the process's directory for the time of f. Nothing else here depends on it.
func (s *Store) takeTurn(dir string, f func() error) error {
	s.mu.Lock()
	for s.entered {
		s.turn.Wait()
	}
	s.entered = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.entered = false
		s.mu.Unlock()
		s.turn.Signal()
	}()
	if err := os.Chdir(dir); err != nil {
		return err
	}
	defer os.Chdir("/")
	return f()
}

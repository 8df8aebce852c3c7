package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	libraryName = "libtendril_opencl.so"
	icdName     = "tendril.icd"
)

// findLibrary returns the absolute path of the driver library: told, else TENDRIL_LIBRARY, else beside this program
// (bin/), else ../lib/tendril (an installation).
func findLibrary(told string) (string, error) {
	if told == "" {
		told = os.Getenv("TENDRIL_LIBRARY")
	}
	if told != "" {
		return existing(told)
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return "", err
	}
	dir := filepath.Dir(exe)
	places := []string{filepath.Join(dir, libraryName), filepath.Join(dir, "..", "lib", "tendril", libraryName)}
	for _, p := range places {
		if lib, err := existing(p); err == nil {
			return lib, nil
		}
	}
	return "", fmt.Errorf("the driver library is missing: it is neither %s. Build it (make build), or name it with --library or TENDRIL_LIBRARY",
		strings.Join(places, " nor "))
}

func existing(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(abs)
	if err != nil {
		return "", fmt.Errorf("driver library: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("driver library %s is not a file", abs)
	}
	return abs, nil
}

// stampMark stands before the version in a library, and a semicolon behind it (forwarding/icd).
const (
	stampMark = "tendril-library-version="
	stampMost = 100 // bytes of a version
)

// libraryVersion finds the version that the build stamped into a library, without loading it. "" when it has none.
func libraryVersion(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const keep = len(stampMark) + stampMost + 1
	b, kept := make([]byte, 128<<10), 0 // a larger part takes longer: its pages are new
	for {
		n, err := io.ReadFull(f, b[kept:])
		if stamp := findStamp(b[:kept+n]); stamp != "" || err != nil {
			return stamp
		}
		kept = copy(b, b[len(b)-keep:])
	}
}

// findStamp finds a whole stamp in a part of a file. The mark alone may stand elsewhere, too.
func findStamp(b []byte) string {
	for {
		_, after, found := bytes.Cut(b, []byte(stampMark))
		if !found {
			return ""
		}
		end := bytes.IndexByte(after[:min(len(after), stampMost+1)], ';')
		if end > 0 && bytes.IndexFunc(after[:end], func(r rune) bool { return r <= ' ' || r >= 0x7f }) < 0 {
			return string(after[:end])
		}
		b = after
	}
}

// vendorsDir returns a directory that holds our .icd file, with the library's absolute path, and no other. The one
// beside the library serves unless it was moved since it was built; then one is made for this user.
func vendorsDir(library string) (string, error) {
	for _, dir := range []string{filepath.Join(filepath.Dir(library), "vendors"), filepath.Dir(library)} {
		if onlyOurs(dir, library) {
			return dir, nil
		}
	}
	base, err := userDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(library))
	dir := filepath.Join(base, "icd-"+hex.EncodeToString(sum[:6]))
	if onlyOurs(dir, library) {
		return dir, nil
	}
	if err := writeICD(dir, library); err != nil {
		return "", fmt.Errorf("a place for the .icd file: %w", err)
	}
	return dir, nil
}

func onlyOurs(dir, library string) bool {
	found, _ := filepath.Glob(filepath.Join(dir, "*.icd"))
	if len(found) != 1 {
		return false
	}
	raw, err := os.ReadFile(found[0])
	return err == nil && strings.TrimSpace(string(raw)) == library
}

// userDir is a directory that belongs to this user alone. Another user who made /tmp/tendril-UID first could choose
// what our programs load, so its owner and mode are checked.
func userDir() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("tendril-%d", os.Getuid()))
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		dir = filepath.Join(run, "tendril")
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Getuid() || st.Mode&0o022 != 0 {
		return "", fmt.Errorf("%s must be a directory that only you can write", dir)
	}
	return dir, nil
}

// writeICD makes the directory again under another name and moves it into place, so that nobody reads half a file.
func writeICD(dir, library string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".icd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.WriteFile(filepath.Join(tmp, icdName), []byte(library+"\n"), 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil && !onlyOurs(dir, library) {
		return err
	}
	return nil
}

package workers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ownLibrary is how the base name of Tendril's own driver library begins: it must never be loaded by a worker, or a
// worker would forward to itself.
const ownLibrary = "libtendril_opencl"

// maxICDBytes bounds what is read of an .icd file: one line with a library's name.
const maxICDBytes = 4096

// Driver is one installed OpenCL driver, as an .icd file announces it (cl_khr_icd).
type Driver struct {
	ICD     string // path of the .icd file
	Library string // what its first line names: a path, or a name for the dynamic linker
}

// Discover lists the drivers announced by *.icd files in dirs, in the order of dirs and then of names, each library
// once and Tendril's own never. A directory that is not there holds nothing. What could not be read comes back as one
// error beside the drivers that could.
func Discover(dirs []string) ([]Driver, error) {
	var found []Driver
	var faults []error
	seen := map[string]bool{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir) // sorted by name
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, fmt.Errorf("vendors directory: %w", err))
		}
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".icd") {
				continue
			}
			d, err := readICD(filepath.Join(dir, e.Name()))
			if err != nil {
				faults = append(faults, err)
				continue
			}
			if !d.ours() && !seen[d.Library] {
				seen[d.Library] = true
				found = append(found, d)
			}
		}
	}
	return slices.Clip(found), errors.Join(faults...)
}

func readICD(path string) (Driver, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Driver{}, fmt.Errorf("driver file: %w", err)
	}
	if !info.Mode().IsRegular() { // a FIFO would block the daemon's start
		return Driver{}, fmt.Errorf("driver file %s is %v, not a regular file", path, info.Mode())
	}
	f, err := os.Open(path)
	if err != nil {
		return Driver{}, fmt.Errorf("driver file: %w", err)
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, maxICDBytes)).ReadString('\n')
	if err != nil && err != io.EOF {
		return Driver{}, fmt.Errorf("driver file %s: %w", path, err)
	}
	lib := strings.TrimSpace(line)
	if lib == "" || strings.ContainsRune(lib, 0) {
		return Driver{}, fmt.Errorf("driver file %s names no library in its first line", path)
	}
	return Driver{ICD: path, Library: lib}, nil
}

// ours reports whether the driver is Tendril's own, also behind a symbolic link.
func (d Driver) ours() bool {
	if strings.HasPrefix(filepath.Base(d.Library), ownLibrary) {
		return true
	}
	real, err := filepath.EvalSymlinks(d.Library)
	return err == nil && strings.HasPrefix(filepath.Base(real), ownLibrary)
}

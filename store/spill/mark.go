package spill

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A directory that is lost alone (a volume that is not mounted, a restore of a part) looks like one in which nothing
// was ever kept. So before the first object that has to last, a mark is made in it, and then one beside it: where only
// the one beside is found, what it speaks of is missing.

const (
	markName   = "kept"  // in the directory
	markSuffix = ".kept" // beside it, after its name
)

// IsMissing reports whether objects that had to last were in the directory at path, and it is not there now, or is
// another one.
func IsMissing(path string) (bool, error) {
	marked, err := isThere(path + markSuffix)
	if err != nil || !marked {
		return false, err
	}
	if marked, err = isThere(filepath.Join(path, markName)); err != nil || marked {
		return false, err
	}
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), recordSuffix) }),
		nil
}

// Forgo takes the mark away that IsMissing goes by: what it speaks of is given up.
func Forgo(path string) error {
	if err := os.Remove(path + markSuffix); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func isThere(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// markKept makes both marks where they are missing, the inner one first: an outer one alone would say that objects are
// lost.
func (d *Dir) markKept() error {
	d.mark.Lock()
	defer d.mark.Unlock()
	if d.marked {
		return nil
	}
	for _, path := range []string{filepath.Join(d.path, markName), d.path + markSuffix} {
		there, err := isThere(path)
		if err == nil && !there {
			if err = d.writeFile(path, nil, true); err == nil {
				err = d.syncDir(filepath.Dir(path))
			}
		}
		if err != nil {
			return err
		}
	}
	d.marked = true
	return nil
}

// Package durable replaces a small file so that a crash leaves the old content or the new one (rename(2), fsync(2)). It
// trusts the directory it writes into. No state, no locks.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// Replace writes a file whole or not at all, mode 0600; it and its name are on disk when Replace returns.
func Replace(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes a directory's entries durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

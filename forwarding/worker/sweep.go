package worker

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// PoCL tries whether it may write to its cache by making an empty file there, once a process, and leaves it. A program
// natively has one process; a node has a worker a session, and would fill its disk with entries. A compiler that is
// killed leaves others.
const (
	leftPrefix = "tempfile_"
	leftEmpty  = time.Minute // after which nobody looks at an empty one any more
	// after which none is in use: sources are read at once, and what is linked gets its name when it is whole
	leftLong = time.Hour
)

// sweepCache removes what earlier workers of the tenant left in PoCL's cache. What cannot be looked at or removed
// stays: another worker may be at it, and nothing depends on it.
func sweepCache(dir string, now time.Time) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // there is none yet, or no PoCL
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), leftPrefix) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue
		}
		age := now.Sub(info.ModTime())
		if info.Size() == 0 && age > leftEmpty || age > leftLong {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

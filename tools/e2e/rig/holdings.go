package rig

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"tendril/client"
	"tendril/client/admin"
)

// Holdings is what a daemon at rest holds of the kernel.
type Holdings struct {
	descriptors, memfds, mappings, threads, goroutines, children int
	privateKiB                                                   int // RssAnon of /proc/PID/status
	// below its directory, kernel caches and state, but for:
	files int
	// what killed compilers left within the last hour, after which the next worker removes it
	left    int
	kinds   string // of them, the most first
	charged uint64 // bytes, the store's
	open    string // descriptors of each kind
}

func (h Holdings) String() string {
	return fmt.Sprintf("%d descriptors (%d memfds), %d mappings of segments, %d threads, %d goroutines, %d children, %d MiB private, %d files (%s), %d of killed compilers, %d bytes charged",
		h.descriptors, h.memfds, h.mappings, h.threads, h.goroutines, h.children, h.privateKiB>>10, h.files, h.kinds,
		h.left, h.charged)
}

// grownFrom names what grew. Threads and private memory are the Go runtime's to keep: it never gives threads back, and
// memory only slowly, so those have slack; all else must not grow at all.
func (h Holdings) grownFrom(first Holdings) error {
	var faults []error
	grew := func(what string, was, is, slack int) {
		if is > was+slack {
			faults = append(faults, fmt.Errorf("%s grew from %d to %d", what, was, is))
		}
	}
	grew("descriptors ("+first.open+"; now "+h.open+")", first.descriptors, h.descriptors, 0)
	grew("descriptors of segments", first.memfds, h.memfds, 0)
	grew("mappings of segments", first.mappings, h.mappings, 0)
	grew("goroutines", first.goroutines, h.goroutines, 0)
	grew("children", first.children, h.children, 0)
	grew("threads", first.threads, h.threads, 12)
	grew("private memory (KiB)", first.privateKiB, h.privateKiB, 24<<10)
	// PoCL leaves an empty one a process, which a later one removes after a minute
	grew("files", first.files, h.files, 200)
	grew("bytes charged", int(first.charged), int(h.charged), 0)
	return errors.Join(faults...)
}

// RestLimit bounds the wait for a daemon to be at rest; clients that were killed have left by then, workers have ended.
const RestLimit = 5 * time.Minute

// AtRest waits until the daemon has no client but this one, no session and no object, looks twice the same in a row,
// and holds no more than first did, where that is not nil. It gives what it holds then, with the one connection that it
// asks over: one a question would be there in some looks, and in others gone. The error says what does not go.
func (n *Node) AtRest(ctx context.Context, first *Holdings) (Holdings, error) {
	ctx, cancel := context.WithTimeout(ctx, RestLimit)
	defer cancel()
	conn, err := client.Dial(ctx, client.Options{Socket: n.Socket()})
	if err != nil {
		return Holdings{}, err
	}
	defer conn.Close()
	var before Holdings
	var grown error
	for {
		var s Status
		text, err := n.soon(func() ([]byte, error) { return admin.Of(conn).Status(ctx) })
		if err == nil {
			err = json.Unmarshal(text, &s)
		}
		if err != nil {
			return Holdings{}, errors.Join(err, grown)
		}
		busy := fmt.Sprintf("%d sessions, store %+v", len(s.Sessions), s.Store)
		quiet := len(s.Sessions) == 0 && s.Store.Objects == 0 && s.Store.Connections <= 1 && s.Store.SessionBytes == 0
		for _, w := range s.Workers {
			quiet = quiet && w.State == "warm"
		}
		h, err := look(n.PID())
		if err != nil {
			return h, err
		}
		if err := h.countFiles(n.Dir, time.Now()); err != nil {
			return h, err
		}
		h.goroutines, h.charged = s.Node.Goroutines, s.Store.ChargedBytes
		settled := h
		settled.privateKiB, settled.threads, settled.files, settled.left, settled.kinds = before.privateKiB,
			before.threads, before.files, before.left, before.kinds
		if grown = nil; quiet && settled == before {
			if first != nil {
				grown = h.grownFrom(*first) // perhaps a connection that is not quite gone
			}
			if grown == nil {
				return h, nil
			}
		}
		before = h
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return h, errors.Join(fmt.Errorf("the daemon does not come to rest: %s; %s", busy, h), grown)
		}
	}
}

// countFiles counts what lies below dir, and how many there are of each kind: its path without what is in it of numbers
// and chance. What goes meanwhile is not there.
func (h *Holdings) countFiles(dir string, now time.Time) error {
	h.files, h.left = 0, 0
	counts := map[string]int{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		if ofKilledCompiler(e, now) {
			h.left++
			return nil
		}
		h.files++
		counts[chance.ReplaceAllString(strings.TrimPrefix(path, dir+"/"), "*")]++
		return nil
	})
	h.kinds = counted(counts, kindsShown)
	return err
}

// counted lists the most frequent ones.
func counted(counts map[string]int, most int) string {
	kinds := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a, b))
	})
	var list []string
	for _, kind := range kinds[:min(len(kinds), most)] {
		list = append(list, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	return strings.Join(list, ", ")
}

// ofKilledCompiler says whether a file is one of those that a worker removes an hour later (worker/sweep.go): how many
// there are says how many compilers were killed within it, which on a busy machine is most of the killed sessions. One
// that is older is a file like others.
func ofKilledCompiler(e fs.DirEntry, now time.Time) bool {
	if !strings.HasPrefix(e.Name(), "tempfile_") {
		return false
	}
	info, err := e.Info()
	return err == nil && info.Size() > 0 && now.Sub(info.ModTime()) < sweptAfter
}

// sweptAfter is the hour, and time for the next worker to come.
const sweptAfter = time.Hour + 5*time.Minute

const kindsShown = 4

// chance is what a name has of numbers, hashes and mkstemp's letters.
var chance = regexp.MustCompile(`[0-9a-f]{8,}|[0-9]+|[A-Z]{6,}|(tempfile|pocl|tmp)[-_][0-9A-Za-z_-]+`)

// look counts what the kernel knows of a process.
func look(pid int) (h Holdings, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return h, err
	}
	kinds := map[string]int{}
	for _, fd := range fds {
		if target, err := os.Readlink(dir + "/fd/" + fd.Name()); err == nil {
			h.descriptors++
			kinds[chance.ReplaceAllString(filepath.Base(target), "*")]++
			if strings.HasPrefix(target, "/memfd:") {
				h.memfds++
			}
		}
	}
	h.open = counted(kinds, len(kinds))
	maps, err := os.ReadFile(dir + "/maps")
	if err != nil {
		return h, err
	}
	h.mappings = strings.Count(string(maps), "/memfd:tendril")
	tasks, err := filepath.Glob(dir + "/task/*/children")
	if err != nil {
		return h, err
	}
	h.threads = len(tasks)
	for _, task := range tasks {
		if text, err := os.ReadFile(task); err == nil {
			h.children += len(strings.Fields(string(text)))
		}
	}
	status, err := os.ReadFile(dir + "/status")
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			h.privateKiB, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
		}
	}
	return h, err
}

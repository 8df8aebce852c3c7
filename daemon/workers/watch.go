package workers

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// Limits on one process are the kernel's to keep. What a worker takes together with all that it started, and a tenant's
// workers together, only a cgroup bounds; where there is none the daemon looks, and ends what is over. Workers come
// first of all when the kernel has to end something, and what they started before them.

const (
	limitsLook  = 500 * time.Millisecond // between two looks
	limitsShare = 50                     // times what the last one took is the least pause, but no more than
	limitsMost  = 5 * time.Second        // for a look is slow just where a worker has taken the machine
)

// use is what a process takes with all that it started.
type use struct {
	tasks    int   // processes and threads
	bytes    int64 // of memory of their own, resident or swapped out
	children []int // what it started, by number
}

// lookAt walks down from pid. What starts or ends meanwhile may be missed, and is seen the next time. Whoever loses its
// parent there comes to the first process of the PID namespace, so nobody can leave the tree; where there are no
// namespaces it can, and is ended by its group. It stops at most tasks. What it says of memory is too much where
// processes have pages in common, unless it is to be exact.
func lookAt(pid, most int, exact bool) use {
	var u use
	next := []int{pid}
	for len(next) > 0 && u.tasks <= most {
		p := next[0]
		next = next[1:]
		threads, bytes := ownUse(p)
		if exact {
			if share, ok := ownShare(p); ok {
				bytes = share
			}
		}
		u.tasks += threads
		u.bytes += bytes
		if p != pid && threads > 0 {
			u.children = append(u.children, p)
		}
		next = append(next, childrenOf(p)...)
	}
	return u
}

// ownUse reads one process's threads and memory (proc(5), status). Memory that it shares with others is not its own:
// that of the store is charged there.
func ownUse(pid int) (threads int, bytes int64) {
	raw := appendFile(make([]byte, 0, statusBytes), "/proc/"+strconv.Itoa(pid)+"/status")
	for line := range strings.Lines(string(raw)) {
		name, rest, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 53)
		switch name {
		case "Threads":
			threads = int(n)
		case "RssAnon", "VmSwap", "VmPTE":
			bytes += n << 10
		}
	}
	return threads, bytes
}

// statusBytes is more than a status has (proc(5), status).
const statusBytes = 4 << 10

// ownShare reads a process's memory, of pages that others have as well, such as after a fork, its part (proc(5),
// smaps_rollup). The kernel walks through all of its memory for that.
func ownShare(pid int) (bytes int64, ok bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(raw)) {
		name, rest, _ := strings.Cut(line, ":")
		if n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 53); err == nil &&
			(name == "Pss_Anon" || name == "SwapPss") {
			bytes, ok = bytes+n<<10, true
		}
	}
	return bytes, ok
}

// childrenOf lists what a process's threads have started (proc(5), task/TID/children).
func childrenOf(pid int) (list []int) {
	task := "/proc/" + strconv.Itoa(pid) + "/task/"
	raw := make([]byte, 0, 1<<10)
	for _, thread := range threadsOf(pid) {
		raw = appendFile(raw[:0], task+thread+"/children") // a thread that ended in the meantime has none
		for f := range strings.FieldsSeq(string(raw)) {
			if child, err := strconv.Atoi(f); err == nil {
				list = append(list, child)
			}
		}
	}
	return list
}

// watchLimits lives as long as the pool.
func (p *Pool) watchLimits() {
	defer p.joined.Done()
	pause := p.opts.LimitsLook
	if pause == 0 {
		pause = limitsLook
	}
	for {
		began := time.Now()
		p.checkLimits()
		select {
		case <-time.After(max(pause, pauseAfter(time.Since(began)))):
		case <-p.ctx.Done():
			return
		}
	}
}

// pauseAfter gives the least pause after a look that took so long.
func pauseAfter(took time.Duration) time.Duration { return min(limitsShare*took, limitsMost) }

// checkLimits ends the workers that are over their limits; of a tenant that is over its own, the one that takes most.
func (p *Pool) checkLimits() {
	l := p.opts.Limits
	most := mostTasks(l)
	sums, largest := map[string]use{}, map[string]*worker{}
	uses := map[*worker]use{}
	for _, w := range p.allWorkers() {
		u := lookAt(w.pid, most, false)
		if l.MemoryBytes > 0 && u.bytes > l.MemoryBytes || l.TenantBytes > 0 && u.bytes > l.TenantBytes/4 &&
			len(u.children) > 0 {
			u = lookAt(w.pid, most, true)
		}
		w.tasks.Store(int64(u.tasks))
		w.bytes.Store(u.bytes)
		for _, child := range u.children { // the kernel's choice, should it come to that
			_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", child), []byte(strconv.Itoa(herdScore)), 0)
		}
		if why := over(u, l.Processes, l.MemoryBytes, "worker"); why != "" {
			p.endFor(w, why)
			continue
		}
		tenant := w.key.tenant
		sum := sums[tenant]
		sums[tenant] = use{tasks: sum.tasks + u.tasks, bytes: sum.bytes + u.bytes}
		if uses[w] = u; largest[tenant] == nil || u.bytes > uses[largest[tenant]].bytes {
			largest[tenant] = w
		}
	}
	for tenant, sum := range sums {
		if why := over(sum, l.TenantProcesses, l.TenantBytes, "tenant"); why != "" {
			p.endFor(largest[tenant], why)
		}
	}
}

// mostTasks is where a look at one worker may stop: it is over then, whatever else there is.
func mostTasks(l Limits) int {
	switch {
	case l.Processes > 0:
		return l.Processes
	case l.TenantProcesses > 0:
		return l.TenantProcesses
	}
	return 1 << 16
}

// over says what of u is too much; "" if nothing is.
func over(u use, tasks int, bytes int64, whose string) string {
	switch {
	case bytes > 0 && u.bytes > bytes:
		return fmt.Sprintf("ended by the daemon: it and its child processes take %s of memory, more than %s (--%s-memory)", humanize.IBytes(uint64(u.bytes)), humanize.IBytes(uint64(bytes)), whose)
	case tasks > 0 && u.tasks > tasks:
		return fmt.Sprintf("ended by the daemon: it and its child processes have more than %d processes and threads (--%s-processes)", tasks, whose)
	}
	return ""
}

func (p *Pool) endFor(w *worker, why string) {
	p.opts.Log.WithField("tenant", w.key.tenant).WithField("pid", w.pid).Warn("a worker takes too much: " + why)
	w.killFor(why)
}

// allWorkers lists those that serve and those that are warm.
func (p *Pool) allWorkers() []*worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := append([]*worker{}, p.warm...)
	for _, s := range p.serving {
		if !s.w.ended() && !s.w.wasKilled() {
			list = append(list, s.w)
		}
	}
	return list
}

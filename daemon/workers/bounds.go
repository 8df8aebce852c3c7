package workers

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// Bounds is what `tendril status` shows of Limits. 0 is no bound.
type Bounds struct {
	Processes       int   `json:"processes"` // of a worker with what it started, threads too
	MemoryBytes     int64 `json:"memory_bytes"`
	Files           int   `json:"files"`
	FileBytes       int64 `json:"file_bytes"`
	TenantProcesses int   `json:"tenant_processes"`
	TenantBytes     int64 `json:"tenant_bytes"`
	Workers         int   `json:"workers"`      // serving at one time
	KeptWorkers     int   `json:"kept_workers"` // of them for tenants that have none
	// who keeps it: "cgroup", "process limit" or "daemon", which looks now and then
	ProcessesBy string `json:"processes_by"`
	MemoryBy    string `json:"memory_by"` // "cgroup" or "daemon"
	// "cgroup", or "sessions": an equal share for each session where the kernel groups by them
	CPUBy string `json:"cpu_by"`
	// what ends all that a worker started: "pid namespace", or "process group and guard"
	EndedBy string `json:"ended_by"`
	Users   string `json:"users,omitempty"`  // range of tenants' workers
	Cgroup  string `json:"cgroup,omitempty"` // that workers are in
}

// Bounds gives what is in force.
func (p *Pool) Bounds() Bounds {
	l, i := p.opts.Limits, p.spawner.isolation()
	b := Bounds{
		Processes: max(l.Processes, 0), MemoryBytes: max(l.MemoryBytes, 0), Files: max(l.Files, 0),
		FileBytes:       max(l.FileBytes, 0),
		TenantProcesses: max(l.TenantProcesses, 0), TenantBytes: max(l.TenantBytes, 0), Workers: p.opts.Max,
		KeptWorkers: p.shares.kept(),
		ProcessesBy: "daemon", MemoryBy: "daemon", CPUBy: "sessions", EndedBy: "process group and guard",
	}
	if i&unix.CLONE_NEWUSER != 0 && countsByNamespace() {
		b.ProcessesBy = "process limit"
	}
	if i&unix.CLONE_NEWPID != 0 {
		b.EndedBy = "pid namespace"
	}
	if p.ids != nil {
		b.Users = p.opts.IDs.String()
	}
	if p.groups != nil {
		b.Cgroup = p.groups.dir
		for name, by := range map[string]*string{"pids": &b.ProcessesBy, "memory": &b.MemoryBy, "cpu": &b.CPUBy} {
			if slices.Contains(p.groups.has, name) {
				*by = "cgroup"
			}
		}
	}
	return b
}

// lacking says which bounds are not kept by the kernel, and why.
func (p *Pool) lacking() []clwire.Fallback {
	if p.groups == nil {
		return []clwire.Fallback{{What: "cgroups for workers",
			Why: p.noGroups + "; the daemon checks their memory from time to time instead"}}
	}
	var list []clwire.Fallback
	for _, c := range p.groups.lacks() {
		list = append(list, clwire.Fallback{What: "cgroups for workers: " + c,
			Why: fmt.Sprintf("%s has no such controller for the daemon", p.groups.dir)})
	}
	return list
}

// openGroups divides the cgroup that the daemon was given, where it was.
func (p *Pool) openGroups() {
	if p.opts.Group == "" {
		p.noGroups = p.opts.NoGroup
		return
	}
	g, err := openGroups(linux{}, p.opts.Group, p.opts.Limits)
	if err != nil {
		p.noGroups = err.Error()
		return
	}
	p.groups = g
}

// enterGroup makes a worker's cgroup. One that cannot be made is done without: the other bounds hold.
func (p *Pool) enterGroup(tenant string) (group, *os.File) {
	if p.groups == nil {
		return group{}, nil
	}
	g, err := p.groups.make(tenant)
	if err == nil {
		var fd int
		if fd, err = g.open(); err == nil {
			return g, os.NewFile(uintptr(fd), g.dir)
		}
		g.end()
	}
	p.opts.Log.WithError(err).WithField("tenant", tenant).Warn("a worker has no cgroup of its own")
	return group{}, nil
}

package daemon

import (
	"maps"
	"os"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tendril/cluster/fsm"
	"tendril/daemon/inspect"
	"tendril/store"
)

// Metrics implements inspect.Source. The cost is in proportion to the segments and tenants, not to the objects.
func (l *look) Metrics(v inspect.Viewer) ([]inspect.Metric, error) {
	tenant, all := l.sees(v)
	st := l.store.Status()
	list := append(l.nodeMetrics(), storeMetrics(st)...)
	list = append(list, countMetrics(l.store.Counts())...)
	list = append(list, l.requestMetrics()...)
	list = append(list, l.workerMetrics()...)
	list = append(list, l.clusterMetrics()...)
	list = append(list, tenantMetrics(st.Tenants, tenant, all)...)
	return append(list, l.deviceMetric(tenant, all)), nil
}

func gauge(name, help string, value float64) inspect.Metric {
	return inspect.Metric{Name: name, Help: help, Samples: []inspect.Sample{{Value: value}}}
}

func counter[N uint64 | float64](name, help string, value N) inspect.Metric {
	return inspect.Metric{Name: name, Help: help, Counter: true, Samples: []inspect.Sample{{Value: float64(value)}}}
}

// by makes one family of counts that differ in one label, in the order of its values.
func by(name, help, label string, counter bool, values map[string]float64) inspect.Metric {
	m := inspect.Metric{Name: name, Help: help, Counter: counter}
	for _, x := range slices.Sorted(maps.Keys(values)) {
		m.Samples = append(m.Samples, inspect.Sample{Labels: []string{label, x}, Value: values[x]})
	}
	return m
}

// nodeMetrics are of the process and the machine: those that every exporter has have their usual names.
func (l *look) nodeMetrics() []inspect.Metric {
	build := inspect.Metric{Name: "tendril_build_info", Help: "1; the labels say which release runs.",
		Samples: []inspect.Sample{{Labels: []string{"version", l.build.Version, "goversion", runtime.Version()},
			Value: 1}}}
	list := []inspect.Metric{build,
		gauge("go_goroutines", "Goroutines of the daemon.", float64(runtime.NumGoroutine())),
		gauge("process_start_time_seconds", "When the daemon started, as a Unix time.",
			float64(l.node.Since.UnixMilli())/1e3)}
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) == nil {
		seconds := float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
		list = append(list, counter("process_cpu_seconds_total", "CPU time of the daemon.", seconds))
	}
	if pages, ok := residentPages(); ok {
		list = append(list, gauge("process_resident_memory_bytes", "Memory of the daemon, segments that it maps included.",
			float64(pages*uint64(os.Getpagesize()))))
	}
	if dir, err := os.Stat("/proc/self/fd"); err == nil && dir.Size() > 0 { // Linux 6.2 counts them there
		list = append(list, gauge("process_open_fds", "Descriptors that the daemon has open.", float64(dir.Size())))
	}
	return list
}

// residentPages reads /proc/self/statm (proc(5)).
func residentPages() (uint64, bool) {
	text, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0, false
	}
	n, err := strconv.ParseUint(fields[1], 10, 64)
	return n, err == nil
}

// storeMetrics say what the store holds now.
func storeMetrics(st store.Status) []inspect.Metric {
	bytes := func(name, help string, n uint64) inspect.Metric {
		return gauge("tendril_store_"+name, help, float64(n))
	}
	return []inspect.Metric{
		bytes("capacity_bytes", "Capacity of the store.", st.CapacityBytes),
		bytes("charged_bytes", "Charged of the capacity: segments and table.", st.ChargedBytes),
		bytes("used_bytes", "Sizes that the creators of objects asked for.", st.UsedBytes),
		bytes("warm_bytes", "Populated memory that is ready for new segments.", st.WarmBytes),
		bytes("idle_bytes", "Empty segments that are kept for their writers.", st.IdleBytes),
		bytes("leaving_bytes", "Unused memory that connections still hold.", st.LeavingBytes),
		bytes("session_bytes", "Segments of OpenCL sessions.", st.SessionBytes),
		bytes("table_bytes", "Memory of the table of objects.", st.TableBytes),
		bytes("request_bytes", "Memory of the daemon that requests hold while they wait.", st.RequestBytes),
		bytes("request_limit_bytes", "Limit of the memory that requests hold.", st.RequestLimit),
		bytes("objects", "Objects, sealed or not.", uint64(st.Objects)),
		bytes("open_objects", "Objects that are not sealed.", uint64(st.OpenObjects)),
		bytes("spilled_objects", "Objects that are on disk only.", uint64(st.SpilledObjects)),
		bytes("spilled_bytes", "Sizes of the objects that are on disk only.", st.SpilledBytes),
		bytes("references", "References that connections hold.", uint64(st.References)),
		bytes("segments", "Pieces of shared memory.", uint64(st.Segments)),
		bytes("disk_bytes", "Disk space of the store's files.", st.DiskBytes),
		bytes("disk_limit_bytes", "Limit of the disk space of the store's files.", st.DiskBytesAtMost),
		bytes("disk_waiting", "Transfers that wait for the disk.", uint64(st.DiskWaiting)),
		bytes("damaged_files", "Files that the daemon could not read when it started.", uint64(len(st.Damaged))),
		bytes("files_left", "Files of deleted objects that could not be removed.", uint64(st.FilesLeft)),
		bytes("records_behind", "Objects whose last change could not be written to disk.", uint64(st.RecordsBehind)),
	}
}

// countMetrics say what happened in the store.
func countMetrics(c store.Counts) []inspect.Metric {
	return []inspect.Metric{
		counter("tendril_store_created_objects_total", "Objects that were created, copies included.", c.Created),
		counter("tendril_store_removed_objects_total", "Objects that were deleted, expired or lost their last reference.",
			c.Removed),
		counter("tendril_store_evicted_objects_total", "Objects that left memory for disk.", c.Evicted),
		counter("tendril_store_evicted_bytes_total", "Sizes of the objects that left memory for disk.", c.EvictedBytes),
		counter("tendril_store_restored_objects_total", "Objects that came back from disk.", c.Restored),
		counter("tendril_store_restored_bytes_total", "Sizes of the objects that came back from disk.", c.RestoredBytes),
		counter("tendril_store_dropped_copies_total", "Copies of other nodes' objects dropped to free memory.", c.DroppedCopies),
		counter("tendril_store_dropped_frames_total", "Frames that streams dropped because nobody popped them.",
			c.DroppedFrames),
		counter("tendril_store_damaged_objects_total", "Objects found to be damaged: their bytes are not those that were sealed.", c.Damaged),
		{Name: "tendril_store_spill_write_duration_seconds", Help: "How long writing an object to disk took.",
			Timed: []inspect.Timed{{Took: c.Writes}}},
		{Name: "tendril_store_spill_read_duration_seconds", Help: "How long reading an object from disk took.",
			Timed: []inspect.Timed{{Took: c.Reads}}},
	}
}

// requestMetrics say what clients asked for. The door is not there before its step of the start.
func (l *look) requestMetrics() []inspect.Metric {
	door := l.door.Load()
	if door == nil {
		return nil
	}
	took := inspect.Metric{Name: "tendril_request_duration_seconds",
		Help: "How long the daemon was busy with each request of a client, without waits.", Timed: []inspect.Timed{}}
	failed := inspect.Metric{Name: "tendril_request_failures_total", Counter: true,
		Help: "Requests that were answered with an error."}
	for _, t := range door.Tallies() {
		labels := []string{"message", t.Message}
		took.Timed = append(took.Timed, inspect.Timed{Labels: labels, Took: t.Took})
		failed.Samples = append(failed.Samples, inspect.Sample{Labels: labels, Value: float64(t.Failed)})
	}
	return []inspect.Metric{took, failed,
		gauge("tendril_connections", "Connections to the front door.", float64(door.Connections())),
		counter("tendril_connections_broken_total", "Connections that ended because the peer broke the protocol.",
			door.Broken()),
	}
}

// workerMetrics are of sessions, the processes that serve them, and what these move over the network.
func (l *look) workerMetrics() []inspect.Metric {
	states, ended := map[string]float64{"starting": 0, "warm": 0, "serving": 0, "ending": 0}, map[string]float64{}
	for _, w := range l.pool.Workers() {
		states[w.State]++
	}
	for cause, n := range l.pool.Ends() {
		ended[cause] = float64(n)
	}
	moved := l.pool.Moved()
	return []inspect.Metric{
		gauge("tendril_sessions", "OpenCL programs.", float64(len(l.sessions.list()))),
		by("tendril_workers", "Worker processes, by state.", "state", false, states),
		by("tendril_worker_ends_total", "Worker and probe processes that ended, by cause.", "cause", true, ended),
		by("tendril_session_bytes_total", "Bytes that workers and programs on other machines sent each other, by direction.",
			"direction", true,
			map[string]float64{"to_program": float64(moved.Sent), "to_worker": float64(moved.Taken)}),
		by("tendril_session_wire_bytes_total", "Bytes that this took on the connections: fewer where it was compressed.",
			"direction", true,
			map[string]float64{"to_program": float64(moved.SentWire), "to_worker": float64(moved.TakenWire)}),
	}
}

// clusterMetrics are of the metadata and of Raft.
func (l *look) clusterMetrics() []inspect.Metric {
	raft, counts := l.meta.raft.Status(), map[string]float64{}
	l.meta.raft.View(func(s *fsm.State) {
		for kind, n := range s.Counts() {
			counts[kind] = float64(n)
		}
	})
	leads, known := 0.0, 0.0
	if raft.Leader == l.meta.node.String() {
		leads = 1
	}
	if raft.Leader != "" {
		known = 1
	}
	return []inspect.Metric{
		gauge("tendril_raft_applied_index", "Index of the last command that this node applied.", float64(raft.AppliedIndex)),
		gauge("tendril_raft_commit_index", "Index of the last command that the cluster committed.", float64(raft.CommitIndex)),
		gauge("tendril_raft_term", "Raft's term.", float64(raft.Term)),
		gauge("tendril_raft_is_leader", "1 if this node is the leader, else 0.", leads),
		gauge("tendril_raft_has_leader", "1 if this node knows a leader, else 0.", known),
		by("tendril_metadata_records", "Records of the cluster's metadata.", "kind", false, counts),
	}
}

// tenantMetrics say what each tenant has.
func tenantMetrics(tenants []store.TenantStatus, tenant string, all bool) []inspect.Metric {
	list := []inspect.Metric{
		{Name: "tendril_tenant_charged_bytes", Help: "Memory that each tenant is charged."},
		{Name: "tendril_tenant_objects", Help: "Objects of each tenant."},
		{Name: "tendril_tenant_disk_bytes", Help: "Disk space of each tenant's files."},
		{Name: "tendril_tenant_connections", Help: "Connections of each tenant to the store, sessions among them."},
	}
	for _, t := range tenants {
		if !all && t.Name != tenant {
			continue
		}
		for i, n := range []uint64{t.ChargedBytes, uint64(t.Objects), t.DiskBytes, uint64(t.Connections)} {
			list[i].Samples = append(list[i].Samples,
				inspect.Sample{Labels: []string{"tenant", t.Name}, Value: float64(n)})
		}
	}
	return list
}

// deviceMetric says what each tenant's workers have of the devices' own memory.
func (l *look) deviceMetric(tenant string, all bool) inspect.Metric {
	m := inspect.Metric{Name: "tendril_tenant_device_bytes",
		Help: "Device memory that each tenant's sessions have reserved."}
	sums := map[string]uint64{}
	for _, w := range l.pool.Workers() {
		sums[w.Tenant] += w.DeviceBytes
	}
	for name, n := range sums {
		if n > 0 && (all || name == tenant) {
			m.Samples = append(m.Samples, inspect.Sample{Labels: []string{"tenant", name}, Value: float64(n)})
		}
	}
	sort.Slice(m.Samples, func(i, j int) bool { return m.Samples[i].Labels[1] < m.Samples[j].Labels[1] })
	return m
}

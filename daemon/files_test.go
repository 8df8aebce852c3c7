package daemon

import "testing"

// The limit of open files is divided: connections, segments and all else together keep within it, whatever it is.
func TestFilesAreDivided(t *testing.T) {
	for _, limit := range []uint64{256, 1024, 4096, 20_000, 65_536, 1 << 20} {
		for _, conns := range []int{0, 16, 11_500, MaxConnections} {
			for _, quota := range []int{0, 100, 1 << 30} {
				d := &Daemon{cfg: Config{Connections: conns, QuotaSegments: quota}, node: NodeStatus{FileLimit: limit}}
				files, segments, tenant := d.connectionsFiles(), d.segmentFiles(), d.tenantSegments()
				if limit > 1024 && uint64(files+segments+otherFiles) > limit || d.connections() < leastConns {
					t.Errorf("limit %d, %d connections: %d descriptors for them, %d for segments", limit, conns, files,
						segments)
				}
				if segments < leastSegments || tenant < 1 || tenant > segments-segments/8 ||
					quota == 100 && tenant > 100 {
					t.Errorf("limit %d, %d connections, quota %d: %d segments, %d of a tenant", limit, conns, quota,
						segments, tenant)
				}
			}
		}
	}
	d := &Daemon{}
	if d.connectionsFiles() != 0 || d.segmentFiles() != 0 || d.connections() != DefaultConnections {
		t.Error("a limit that is not known bounds something")
	}
	// a daemon that may raise its limit gets what connections and a quota ask for
	d = &Daemon{cfg: Config{Connections: 10_000, QuotaSegments: 50_000}}
	d.node.FileLimit = d.filesWanted()
	if d.connections() != 10_000 || d.tenantSegments() != 50_000 {
		t.Errorf("of %d open files: %d connections, %d segments of a tenant", d.node.FileLimit, d.connections(),
			d.tenantSegments())
	}
}

package frontdoor

import (
	"os/exec"
	"testing"
	"time"

	"tendril/ipc"
	"tendril/store"
)

// A process whose connection a daemon inherited, and that ends without having been back, leaves nothing.
func TestAnHeirEndsWithItsProcess(t *testing.T) {
	s, err := store.New(store.Options{CapacityBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := s.Connect(store.Owner{Tenant: "uid:1", PID: cmd.Process.Pid})
	if err != nil {
		t.Fatal(err)
	}
	o := orphans{grace: time.Hour, of: make(map[int][]*ipc.Process), timer: make(map[*ipc.Process]*time.Timer)}
	defer o.close()
	o.adopt(conn)
	in.Close()
	cmd.Wait()
	o.running.Wait()
	if len(o.of) != 0 || len(o.timer) != 0 {
		t.Errorf("of a process that has ended %v and %v are left", o.of, o.timer)
	}
}

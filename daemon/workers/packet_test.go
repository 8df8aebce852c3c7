package workers

import (
	"bytes"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"tendril/forwarding/clwire"
)

// allocated gives how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// What a worker says is read whole, with its end.
func TestReadPacket(t *testing.T) {
	ours, theirs, err := seqpacketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	long := bytes.Repeat([]byte("x"), clwire.MaxControlBytes)
	for _, said := range [][]byte{[]byte("ready"), long, []byte("lane")} {
		if _, err := theirs.Write(said); err != nil {
			t.Fatal(err)
		}
		got, err := readPacket(ours)
		if err != nil || !bytes.Equal(got, said) {
			t.Errorf("%d bytes were read as %d: %v", len(said), len(got), err)
		}
	}
	if err := ours.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := readPacket(ours); !os.IsTimeout(err) {
		t.Errorf("past its deadline: %v", err)
	}
	if err := ours.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if _, err := readPacket(ours); err != io.EOF {
		t.Errorf("at its end: %v", err)
	}
}

// A session's start is six packets, each of some hundred bytes.
func TestAPacketTakesLittle(t *testing.T) {
	ours, theirs, err := seqpacketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	const packets = 100
	if n := allocated(func() {
		for range packets {
			if _, err := theirs.WriteString("a lane is up"); err != nil {
				t.Fatal(err)
			}
			if _, err := readPacket(ours); err != nil {
				t.Fatal(err)
			}
		}
	}); n > packets<<10 {
		t.Errorf("a packet of 12 bytes takes %d bytes of memory", n/packets)
	}
}

// The daemon looks at each worker twice a second for as long as it lives: through package os that took 2 KiB a thread.
func TestALookTakesLittle(t *testing.T) {
	pid := os.Getpid()
	var u use
	n := allocated(func() { u = lookAt(pid, 1000, false) })
	if u.tasks == 0 || u.bytes == 0 {
		t.Fatalf("nothing was seen: %+v", u)
	}
	if most := uint64(24<<10 + u.tasks<<9); n > most {
		t.Errorf("a look at %d threads takes %d bytes of memory, more than %d", u.tasks, n, most)
	}
}

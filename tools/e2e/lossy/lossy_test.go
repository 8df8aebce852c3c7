package lossy

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tendril/tools/e2e/await"
)

// lay makes a link, or skips where the machine has none.
func lay(t *testing.T, q Quality) *Link {
	t.Helper()
	here := goleak.IgnoreCurrent()
	t.Cleanup(func() { await.NoneLeft(t, here) })
	if _, err := exec.LookPath("ip"); err != nil || os.Getuid() != 0 {
		t.Skipf("skipped: network namespaces need root and ip(8): %v", err)
	}
	l, err := Lay(fmt.Sprintf("tl%d", os.Getpid()), q)
	if err != nil {
		t.Skipf("skipped: this machine makes no such link: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// connect is one TCP connection across.
func connect(t *testing.T, l *Link) (near, far net.Conn) {
	t.Helper()
	var at net.Listener
	if err := l.AtThere(func() (err error) { at, err = net.Listen("tcp", There+":0"); return }); err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	if err := l.AtHere(func() (err error) { near, err = net.Dial("tcp", at.Addr().String()); return }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	far, err := at.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return near, far
}

func TestTCPSurvivesLoss(t *testing.T) {
	l := lay(t, Quality{Delay: 2 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.05})
	near, far := connect(t, l)
	sent := make([]byte, 300<<10)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	go func() {
		_, _ = near.Write(sent)
		near.Close()
	}()
	got, err := io.ReadAll(far)
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes of %d, or others; %v", len(got), len(sent), err)
	}
	if passed, lost := l.Packets(); lost == 0 || passed < uint64(len(sent))/1500 {
		t.Errorf("%d packets passed, %d lost", passed, lost)
	}
}

func TestPacketsComeLate(t *testing.T) {
	l := lay(t, Quality{Delay: 5 * time.Millisecond})
	near, far := connect(t, l)
	go func() { _, _ = io.Copy(far, far) }()
	start, b := time.Now(), make([]byte, 1)
	if _, err := near.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(near, b); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < 10*time.Millisecond {
		t.Errorf("there and back in %v, not 10 ms at least", d)
	}
	near.Close()
}

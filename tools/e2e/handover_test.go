package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tendril/client"
	"tendril/tools/e2e/await"
)

// TestHandover upgrades a daemon three times under clients that put, get and read. Nothing that they hold goes or
// changes, and no call fails but with ErrDisconnected, and rarely.
func TestHandover(t *testing.T) {
	t.Parallel()
	n := node(t)
	successors := []int{}
	t.Cleanup(func() {
		for _, pid := range successors {
			syscall.Kill(pid, syscall.SIGTERM)
			await.Until(t, "the daemon has ended", func() bool { return syscall.Kill(pid, 0) != nil })
		}
	})
	stop := make(chan struct{})
	var running sync.WaitGroup
	load := make([]*handoverClient, 4)
	for i := range load {
		c, err := client.Dial(context.Background(), client.Options{Socket: n.Socket()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		load[i] = &handoverClient{t: t, c: c, seed: byte(i)}
		running.Go(func() { load[i].run(stop) })
	}
	if _, err := n.Run(t.Context(), "put", os.Args[0], "--name", "program"); err != nil {
		t.Fatal(err)
	}
	little := filepath.Join(t.TempDir(), "little")
	if err := os.WriteFile(little, []byte("on a device"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Run(t.Context(), "put", little, "--device", "opencl:0"); err != nil {
		t.Fatal(err)
	}
	pid := n.PID()
	for range 3 {
		if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		pid = servedByAnother(t, filepath.Join(n.Dir, "state", "lock"), pid)
		successors = append(successors, pid)
		for _, l := range load {
			before := l.calls.Load()
			await.Until(t, "calls that the successor answers", func() bool { return l.calls.Load() > before+10 })
		}
	}
	close(stop)
	running.Wait()
	want, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if got, err := n.Run(t.Context(), "get", "program", "-o", "-"); err != nil || !bytes.Equal([]byte(got), want) {
		t.Errorf("a named object after three handovers: %d bytes of %d, %v", len(got), len(want), err)
	}
	if got, err := n.Run(t.Context(), "get", "little", "-o", "-"); err != nil || got != "on a device" {
		t.Errorf("an object in the memory of an OpenCL device after three handovers: %q, %v", got, err)
	}
	calls, broken, longest := int64(0), 0, time.Duration(0)
	for _, l := range load {
		calls, broken, longest = calls+l.calls.Load(), broken+l.broken, max(longest, l.longest)
	}
	t.Logf("%d calls, %d of them answered ErrDisconnected, the longest took %v", calls, broken, longest)
	if calls < 100 || broken > 4*3*4 {
		t.Errorf("%d of %d calls were cut off", broken, calls)
	}
}

// servedByAnother waits until the node is another process's.
func servedByAnother(t *testing.T, lock string, pid int) int {
	t.Helper()
	now := 0
	await.Until(t, "another daemon has taken over", func() bool {
		raw, err := os.ReadFile(lock)
		var parseErr error
		now, parseErr = strconv.Atoi(strings.TrimSpace(string(raw)))
		return err == nil && parseErr == nil && now != pid && syscall.Kill(pid, 0) != nil
	})
	return now
}

// handoverClient is a client's load.
type handoverClient struct {
	t       *testing.T
	c       *client.Conn
	seed    byte
	calls   atomic.Int64
	broken  int
	longest time.Duration
	held    []*client.Object
}

func (l *handoverClient) run(stop chan struct{}) {
	defer func() {
		for _, o := range l.held {
			l.check(o)
			o.Release()
		}
	}()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		if len(l.held) == 10 {
			l.check(l.held[0])
			l.held[0].Release()
			l.held = l.held[1:]
		}
		l.call(func() error {
			o, err := l.c.Put(context.Background(), bytes.Repeat([]byte{l.seed}, 3000), client.CreateOptions{})
			if err == nil {
				l.held = append(l.held, o)
			}
			return err
		})
		l.call(func() error {
			if len(l.held) == 0 {
				return nil
			}
			o, err := l.c.Get(context.Background(), l.held[i%len(l.held)].ID(), 0)
			if err == nil {
				l.check(o)
				o.Release()
			}
			return err
		})
		time.Sleep(time.Millisecond)
	}
}

// call does one thing and counts.
func (l *handoverClient) call(f func() error) {
	began := time.Now()
	err := f()
	l.calls.Add(1)
	l.longest = max(l.longest, time.Since(began))
	if errors.Is(err, client.ErrDisconnected) {
		l.broken++ // once, however long it is: meanwhile each call would fail at once
		await.Until(l.t, "the client has its daemon again", func() bool {
			_, err := l.c.StatByName(context.Background(), "program")
			return !errors.Is(err, client.ErrDisconnected)
		})
	} else if err != nil {
		l.t.Errorf("unexpected: %v", err)
	}
}

func (l *handoverClient) check(o *client.Object) {
	if o.Gone() || !bytes.Equal(o.Bytes(), bytes.Repeat([]byte{l.seed}, 3000)) {
		l.t.Errorf("object %s is gone (%v) or has other bytes", o.ID(), o.Gone())
	}
}

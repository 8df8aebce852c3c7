package ipc

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A socket that listens rests while others are at work, and only then.
func TestPace(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	turns := func(x *pace, other time.Time) (n int) {
		for n = 1; n < 1000; n++ {
			began := at(time.Duration(n) * 50 * time.Microsecond)
			if x.tires(began, began.Add(50*time.Microsecond), other) {
				return n
			}
		}
		return n
	}
	if n := turns(&pace{}, time.Time{}); n != 1000 {
		t.Errorf("it rested after %d turns though it was alone", n)
	}
	busy := NewLingers(1)
	busy.now.Store(1)
	for name, n := range map[string]int{
		"somebody has turns": turns(&pace{}, at(time.Hour)),
		"somebody lingers":   turns(&pace{lingers: busy}, time.Time{}),
	} {
		if want := int(paceWork / (50 * time.Microsecond)); n != want {
			t.Errorf("%s: it rested after %d turns, not %d", name, n, want)
		}
	}
	x := &pace{lingers: busy}
	for n := range 100 { // seldom enough
		began := at(time.Duration(n) * 2 * paceRest)
		if x.tires(began, began.Add(50*time.Microsecond), time.Time{}) {
			t.Fatal("it rested though hardly anybody came")
		}
	}
}

// Nobody is let in while the socket rests, and everybody after it.
func TestWhoConnectsWithoutEndWaits(t *testing.T) {
	l := NewLingers(1)
	l.now.Store(1)
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	path := filepath.Join(t.TempDir(), "socket")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	peer, err := Dial(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	const rests = 5
	var worked time.Duration
	ended, rested, over := time.Now(), 0, make(chan struct{})
	err = p.Listen(fd, l, func() Turn { // somebody waits without end: it is never accepted
		began := time.Now()
		if worked >= 2*paceWork {
			t.Error("it went on without a rest")
			rested = rests
		} else if began.Sub(ended) >= paceRest/2 {
			worked, rested = 0, rested+1
		}
		if rested >= rests {
			close(over)
			return Leave
		}
		for ended = began; ended.Sub(began) < paceWork/10; ended = time.Now() {
		}
		worked += min(ended.Sub(began), pollerMost)
		return More
	})
	if err != nil {
		t.Fatal(err)
	}
	<-over
}

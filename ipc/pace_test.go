package ipc

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Work rests while others are at work, and only then, and not where it is seldom.
func TestPace(t *testing.T) {
	const took = 50 * time.Microsecond
	turns := func(pause time.Duration, othersWork bool) (n int) {
		var x Pace
		for began := time.Now(); n < 1000; began = began.Add(took + pause) {
			if n++; x.Tires(began, took, othersWork) {
				break
			}
		}
		return n
	}
	if n := turns(0, false); n != 1000 {
		t.Errorf("it rested after %d turns though nobody else worked", n)
	}
	if n, want := turns(0, true), int(paceWork/took); n != want {
		t.Errorf("it rested after %d turns, not %d", n, want)
	}
	if n := turns(PaceRest, true); n != 1000 {
		t.Errorf("it rested after %d turns with a rest between any two", n)
	}
}

// Who works is known by tenant: one's own connections are nobody else's.
func TestOthersWork(t *testing.T) {
	l := NewLingers(2)
	l.limit = 2
	mine := l.join("mine")
	if l.enter(mine); l.OthersWork("mine") {
		t.Error("my own connection lingers, and somebody else works")
	}
	if !l.OthersWork("yours") {
		t.Error("my connection lingers, and for you nobody else works")
	}
	l.leave(mine)
	if l.OthersWork("yours") {
		t.Error("nobody lingers, and somebody works")
	}
	if l.crowd(mine, time.Now().Add(time.Hour)); !l.OthersWork("yours") || l.OthersWork("mine") {
		t.Error("several of my connections are busy: you do not hear of it, or I do")
	}
}

// Nobody is let in while the socket rests, and everybody after it.
func TestWhoConnectsWithoutEndWaits(t *testing.T) {
	l := NewLingers(1)
	l.join("other").lingering.Store(1)
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
	peer, err := Dial(path, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	const rests = 5
	var worked time.Duration
	ended, rested, over := time.Now(), 0, make(chan struct{})
	err = p.Listen(fd, l, func(time.Time) Turn { // somebody waits without end: it is never accepted
		began := time.Now()
		if worked >= 2*paceWork {
			t.Error("it went on without a rest")
			rested = rests
		} else if began.Sub(ended) >= PaceRest/2 {
			worked, rested = 0, rested+1
		}
		if rested >= rests {
			close(over)
			return Leave
		}
		for time.Since(began) < paceWork/10 {
		}
		took := min(time.Since(began), pollerMost) // without the processor it rests
		worked, ended = worked+took, began.Add(took)
		return More
	})
	if err != nil {
		t.Fatal(err)
	}
	<-over
}

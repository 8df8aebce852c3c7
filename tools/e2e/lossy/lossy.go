// Package lossy joins two network namespaces by a link whose packets come late, out of order, or not at all. It stands
// for netem where the kernel has no such queueing discipline: TCP at both ends is the kernel's own, and loses real
// segments. It needs root, ip(8) and /dev/net/tun.
//
// A TUN device lies in each namespace; one goroutine a direction reads packets and has each written to the other device
// when it is due; Go's timers may add a millisecond. The package trusts its callers. It has no lock; Close joins
// everything.
package lossy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Addresses of the two ends.
const (
	Here  = "10.78.0.2"
	There = "10.78.0.1"
)

const (
	packetBytes = 2048 // an MTU of 1500, and room
	underWay    = 4096 // packets a direction; more are lost, as at any queue's end
)

// Quality is what befalls each packet, either way. The zero value is a perfect link.
type Quality struct {
	Delay, Jitter time.Duration // a packet takes Delay ± Jitter, evenly spread: later ones overtake
	Loss          float64       // the part that is lost, 0 to 1
}

// Link is two namespaces and what joins them. The caller closes it.
type Link struct {
	here, there string // names of the namespaces
	quality     Quality
	devices     [2]*os.File
	work        sync.WaitGroup

	passed, lost atomic.Uint64
}

// Lay makes the namespaces and the link. Their names begin with tag, which must be short and no other link's of this
// machine.
func Lay(tag string, q Quality) (_ *Link, err error) {
	l := &Link{here: tag + "-here", there: tag + "-there", quality: q}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	for i, end := range []struct{ space, address string }{{l.here, Here}, {l.there, There}} {
		if err := ip("netns", "add", end.space); err != nil {
			return l, err
		}
		device := fmt.Sprintf("%.9s-%d", tag, i) // IFNAMSIZ is 16
		if l.devices[i], err = openTUN(device); err != nil {
			return l, err
		}
		for _, args := range [][]string{
			{"link", "set", device, "netns", end.space},
			{"-n", end.space, "addr", "add", end.address + "/24", "dev", device},
			{"-n", end.space, "link", "set", device, "up"},
			{"-n", end.space, "link", "set", "lo", "up"},
		} {
			if err := ip(args...); err != nil {
				return l, err
			}
		}
	}
	l.work.Go(func() { l.carry(l.devices[0], l.devices[1]) })
	l.work.Go(func() { l.carry(l.devices[1], l.devices[0]) })
	return l, nil
}

// openTUN makes a device of that name, which is gone once the file is closed.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make the TUN device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// carry passes packets on until from is closed.
func (l *Link) carry(from, to *os.File) {
	var waiting atomic.Int64
	for buf := make([]byte, packetBytes); ; {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if rand.Float64() < l.quality.Loss || waiting.Load() >= underWay {
			l.lost.Add(1)
			continue
		}
		packet := append([]byte(nil), buf[:n]...)
		waiting.Add(1)
		l.work.Add(1)
		time.AfterFunc(l.takes(), func() {
			defer l.work.Done()
			waiting.Add(-1)
			if _, err := to.Write(packet); err == nil {
				l.passed.Add(1)
			}
		})
	}
}

// takes is how long the next packet is under way.
func (l *Link) takes() time.Duration {
	if l.quality.Jitter <= 0 {
		return l.quality.Delay
	}
	return l.quality.Delay - l.quality.Jitter + rand.N(2*l.quality.Jitter)
}

// Packets returns how many have arrived and how many were lost, both ways together.
func (l *Link) Packets() (passed, lost uint64) { return l.passed.Load(), l.lost.Load() }

// InsideHere is what a command line begins with that is to run at the end whose address is Here.
func (l *Link) InsideHere() []string { return []string{"ip", "netns", "exec", l.here} }

// InsideThere is the same for There.
func (l *Link) InsideThere() []string { return []string{"ip", "netns", "exec", l.there} }

// AtHere calls f on a thread that is inside: the sockets that f itself makes belong there for good. f starts no
// goroutine.
func (l *Link) AtHere(f func() error) error { return inside(l.here, f) }

// AtThere is the same for There.
func (l *Link) AtThere(f func() error) error { return inside(l.there, f) }

func inside(space string, f func() error) (err error) {
	target, err := os.Open("/run/netns/" + space)
	if err != nil {
		return err
	}
	defer target.Close()
	done := make(chan error, 1)
	go func() { // on a thread that ends with it, since it stays locked
		runtime.LockOSThread()
		if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace %s: %w", space, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Close removes the link and its namespaces; packets that are under way are lost.
func (l *Link) Close() error {
	var errs []error
	for _, d := range l.devices {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	l.work.Wait()
	for _, space := range []string{l.here, l.there} {
		if _, err := os.Stat("/run/netns/" + space); err == nil {
			errs = append(errs, ip("netns", "del", space))
		}
	}
	return errors.Join(errs...)
}

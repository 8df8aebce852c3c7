package client_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/session"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// victimStages are the points at which the victim is killed; each goes on from the one before.
var victimStages = []string{"dialled", "created", "sealed", "got", "waiting", "session", "published", "in a burst"}

func init() { processes["victim"] = victimProcess }

// victimProcess goes to the stage that VICTIM_STAGE names, forks a child that keeps its socket, says that child's
// number and stays.
func victimProcess() {
	if err := victim(os.Getenv("VICTIM_STAGE")); err != nil {
		fmt.Println("failed:", err)
	}
	select {}
}

func victim(until string) error {
	c, err := client.Dial(context.Background(), client.Options{})
	if err != nil {
		return err
	}
	var segment *session.Segment
	stages := map[string]func() error{
		"dialled": func() error { return nil },
		"created": func() error { _, err := c.Create(context.Background(), 5<<20, client.CreateOptions{}); return err },
		"sealed": func() error {
			_, err := c.Put(context.Background(), make([]byte, 1<<20), client.CreateOptions{})
			return err
		},
		"got": func() error {
			_, err := c.GetByName(context.Background(), "kept", 0)
			return err
		},
		"waiting": func() error {
			go c.GetByName(context.Background(), "never", 1<<40)
			return nil
		},
		"session": func() error {
			if _, _, err := session.Of(c).Open(context.Background(), "v", nil); err != nil {
				return err
			}
			segment, err = session.Of(c).AllocSegment(context.Background(), 3<<20, nil)
			return err
		},
		"published": func() error {
			_, err := segment.Publish(context.Background(), 1<<20, object.Ephemeral, "", nil, false)
			return err
		},
		"in a burst": func() error {
			for range 4 {
				go func() {
					for {
						if o, err := c.Put(context.Background(), make([]byte, 3000),
							client.CreateOptions{}); err == nil {
							o.Release()
						}
					}
				}()
			}
			return nil
		},
	}
	for _, stage := range victimStages {
		if err := stages[stage](); err != nil {
			return fmt.Errorf("%s: %w", stage, err)
		}
		if stage == until {
			break
		}
	}
	return fork()
}

// fork starts a child that inherits every socket and says its number.
func fork() error {
	cmd := exec.Command("sleep", "3600") // until the test kills it
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return err
	}
	for _, link := range links {
		if target, _ := os.Readlink(link); strings.HasPrefix(target, "socket:") {
			fd, err := strconv.Atoi(filepath.Base(link))
			if err != nil {
				return err
			}
			dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return err
			}
			cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(dup), "socket"))
		}
	}
	if len(cmd.ExtraFiles) == 0 {
		return fmt.Errorf("no socket to inherit")
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	fmt.Println(cmd.Process.Pid)
	return nil
}

// TestKilledClientLeavesNothing kills a client at every stage, while a forked child still holds its socket.
func TestKilledClientLeavesNothing(t *testing.T) {
	n := startNode(t, store.Options{SegmentBytes: 1 << 20, LargeBytes: 1 << 20})
	keeper := n.dial(t)
	must(keeper.Put(context.Background(), []byte("kept"), client.CreateOptions{Name: "kept",
		Class: object.Named}))(t).Release()
	await.Until(t, "the release", func() bool { return n.store.Status().References == 0 })
	before := n.store.Status()
	fds := openFDs(t)
	for _, stage := range victimStages {
		t.Run(stage, func(t *testing.T) {
			t.Setenv("VICTIM_STAGE", stage)
			p := start(t, "victim", n.socket)
			child, err := strconv.Atoi(p.line(t))
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Kill(child, unix.SIGKILL)
			if n.door.Connections() != 2 {
				t.Fatalf("%d connections before the kill", n.door.Connections())
			}
			p.kill()
			await.Until(t, "the connection to end", func() bool { return n.door.Connections() == 1 })
			if unix.Kill(child, 0) != nil {
				t.Error("the child died: this test shows nothing")
			}
			if st := n.store.Status(); st.KeptBytes > 0 {
				// the victim had not read all that was sent to it: what the child has are descriptors in the socket
				unix.Kill(child, unix.SIGKILL)
				await.Until(t, "what the child has", func() bool { return n.store.Status().KeptBytes == 0 })
			}
			before.Tenants = nil
			var after store.Status
			defer func() {
				if t.Failed() {
					t.Logf("before %+v\nafter  %+v", before, after)
				}
			}()
			await.Until(t, "what there was before", func() bool { // the kernel may let go of memory behind the connection
				after = n.store.Status()
				after.Tenants = nil
				return fmt.Sprintf("%+v", after) == fmt.Sprintf("%+v", before)
			})
		})
	}
	if _, err := keeper.StatByName(context.Background(), "kept"); err != nil {
		t.Errorf("the daemon lives on: %v", err)
	}
	await.Until(t, "descriptors to be closed", func() bool { return openFDs(t) <= fds })
}

func openFDs(t testing.TB) int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// TestNothingLeaks runs whole lives of nodes and clients and looks at descriptors and mappings.
func TestNothingLeaks(t *testing.T) {
	life := func() {
		t.Run("life", func(t *testing.T) {
			n := startNode(t, store.Options{WarmBytes: 8 << 20})
			a, b := n.dial(t), n.dial(t)
			for range 20 {
				o := must(a.Put(context.Background(), make([]byte, 3<<20), client.CreateOptions{}))(t)
				must(b.Get(context.Background(), o.ID(), 0))(t).Release()
				o.Release()
				must(a.Create(context.Background(), 100, client.CreateOptions{}))(t) // left open
			}
			held := must(b.Put(context.Background(), []byte("held beyond Close"), client.CreateOptions{}))(t)
			b.Close()
			if string(held.Bytes()) != "held beyond Close" {
				t.Error("a held object must stay readable")
			}
			held.Release()
		})
	}
	life()
	fds, maps := openFDs(t), mappings(t)
	for range 3 {
		life()
	}
	await.Until(t, "descriptors to be closed", func() bool { return openFDs(t) <= fds })
	if got := mappings(t); got > maps {
		t.Errorf("mappings of segments: %d before, %d after", maps, got)
	}
}

func mappings(t testing.TB) int {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "memfd:tendril")
}

package client_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/store"
	"tendril/store/object"
)

const stranger = 54321 // a user who is nobody here

func init() {
	processes["reopener"] = reopenerProcess
	processes["limited"] = limitedProcess
}

// become gives up root for good; before the first connection, so that the kernel vouches for the new user.
func become(uid int) error {
	if err := unix.Setgroups(nil); err != nil {
		return err
	}
	if err := unix.Setresgid(uid, uid, uid); err != nil {
		return err
	}
	return unix.Setresuid(uid, uid, uid)
}

// reachable lets other users come to a node's socket in a test's directory.
func reachable(t *testing.T, n *node) {
	t.Helper()
	base := cmp.Or(os.Getenv("GOTMPDIR"), os.TempDir()) // where t.TempDir's are
	for dir := filepath.Dir(n.socket); strings.HasPrefix(dir, base+"/"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(n.socket, 0o777); err != nil {
		t.Fatal(err)
	}
}

// reopenerProcess gets the shared object "s" as the user that REOPEN_UID names, while it holds it says what it could
// write by, and stays with its descriptor open.
func reopenerProcess() {
	if uid, err := strconv.Atoi(os.Getenv("REOPEN_UID")); err == nil && uid != os.Getuid() {
		if err := become(uid); err != nil {
			fmt.Println("failed:", err)
			return
		}
	}
	c, err := client.Dial(context.Background(), client.Options{})
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	infos, err := c.ListWhere(context.Background(), client.Query{Shared: true})
	if err != nil || len(infos) == 0 {
		infos, err = c.List(context.Background(), "s", true)
	}
	if err != nil || len(infos) != 1 {
		fmt.Println("failed:", infos, err)
		return
	}
	o, err := c.Get(context.Background(), infos[0].ID, 0)
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	fmt.Println(waysToWrite("self", len(o.Bytes())))
	select {}
}

// waysToWrite tries to change a sealed segment that process pid has, by its descriptors and its mappings, and says by
// which way it was let; "none" is what it should say.
func waysToWrite(pid string, n int) string {
	var ways []string
	tried := 0
	try := func(how string, err error) {
		if tried++; err == nil {
			ways = append(ways, how)
		}
	}
	links, _ := filepath.Glob("/proc/" + pid + "/fd/*")
	files, _ := filepath.Glob("/proc/" + pid + "/map_files/*")
	for _, link := range append(links, files...) {
		if target, _ := os.Readlink(link); !strings.HasPrefix(target, "/memfd:tendril") {
			continue
		}
		_, err := os.OpenFile(link, os.O_RDWR|os.O_TRUNC, 0)
		try("truncating "+link, err)
		fd, err := unix.Open(link, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			tried++
			continue
		}
		_, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		try("mapping "+link, err)
		_, err = unix.Pwrite(fd, []byte("altered"), 0)
		try("writing to "+link, err)
		try("a hole in "+link, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096))
		try("shrinking "+link, unix.Ftruncate(fd, 0))
		unix.Close(fd)
	}
	switch {
	case tried == 0:
		return "nothing was tried"
	case len(ways) > 0:
		return strings.Join(ways, ", ")
	}
	return "none"
}

// TestReaderCannotReopenForWriting: who gets an object cannot make it writable through /proc, as another user, as the
// same one, as root; nor can root through the reader's descriptors.
func TestReaderCannotReopenForWriting(t *testing.T) {
	t.Setenv("TENDRIL_INDEX", "off") // whose slots are mapped, and written
	n := startNode(t, store.Options{})
	c := n.dial(t)
	text := bytes.Repeat([]byte("as it was "), 1000)
	o := must(c.Put(context.Background(), text, client.CreateOptions{Name: "s", Class: object.Named}))(t)
	defer o.Release()
	if err := c.Share(context.Background(), o.ID(), "all"); err != nil {
		t.Fatal(err)
	}
	users := map[string]int{"same user": os.Getuid()}
	if os.Getuid() == 0 {
		reachable(t, n)
		users["another user"] = stranger
	}
	for name, uid := range users {
		t.Run(name, func(t *testing.T) {
			t.Setenv("REOPEN_UID", strconv.Itoa(uid))
			p := start(t, "reopener", n.socket)
			defer p.kill()
			if got := p.line(t); got != "none" {
				t.Errorf("the reader could write: %s", got)
			}
			if got := waysToWrite(strconv.Itoa(p.cmd.Process.Pid), len(text)); got != "none" {
				t.Errorf("through the reader's descriptors: %s", got)
			}
		})
	}
	late := n.dial(t)
	if got := must(late.Get(context.Background(), o.ID(), 0))(t); !bytes.Equal(got.Bytes(), text) {
		t.Error("the object was altered")
	} else {
		got.Release()
	}
}

// TestCreatorWritesAfterTheSeal shows what SECURITY.md says: the creator's mapping of a plain object stays writable (it
// fills the segment's next objects), that of a strict one does not exist, and a strict seal is refused while one does.
func TestCreatorWritesAfterTheSeal(t *testing.T) {
	n := startNode(t, store.Options{})
	creator, reader := n.dial(t), n.dial(t)
	buf := must(creator.Create(context.Background(), 100, client.CreateOptions{}))(t)
	late := buf.Bytes() // a program that breaks its word
	copy(late, "before")
	o := must(buf.Seal(context.Background()))(t)
	defer o.Release()
	got := must(reader.Get(context.Background(), o.ID(), 0))(t)
	defer got.Release()
	copy(late, "after!")
	if string(got.Bytes()[:6]) != "after!" {
		t.Error("a plain seal stopped the creator: SECURITY.md and the client's words are out of date")
	}

	shared := must(creator.Create(context.Background(), 5000, client.CreateOptions{Shared: true, Strict: true,
		Name: "strict"}))(t)
	part := must(reader.Fill(context.Background(), object.ID{}, "strict"))(t)
	if _, err := shared.SealFilled(context.Background(), 0, false); !errors.Is(err, object.ErrBusy) {
		t.Errorf("strict seal while another process fills: %v", err)
	}
	if err := part.Done(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := must(shared.SealFilled(context.Background(), 5*time.Minute, false))(t)
	defer s.Release()
	if info := must(s.Info(context.Background()))(t); !info.Strict {
		t.Errorf("%+v", info)
	}
}

// TestStrictSealFindsAForgottenMapping: somebody kept a writable mapping beside the client's own.
func TestStrictSealFindsAForgottenMapping(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dial(t)
	buf := must(c.Create(context.Background(), 8192, client.CreateOptions{Strict: true}))(t)
	var kept []byte
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if target, _ := os.Readlink(link); strings.HasPrefix(target, "/memfd:tendril") && kept == nil {
			if f, err := os.OpenFile(link, os.O_RDWR, 0); err == nil {
				var st unix.Stat_t
				if unix.Fstat(int(f.Fd()), &st) == nil && st.Size == 8192 {
					kept, _ = unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				}
				f.Close()
			}
		}
	}
	if kept == nil {
		t.Fatal("the unsealed object's memory was not found")
	}
	if _, err := buf.Seal(context.Background()); !errors.Is(err, object.ErrBusy) {
		t.Fatalf("strict seal with a forgotten mapping: %v", err)
	}
	copy(kept, "still mine")
	if err := unix.Munmap(kept); err != nil {
		t.Fatal(err)
	}
	o := must(buf.Seal(context.Background()))(t)
	defer o.Release()
	if string(o.Bytes()[:10]) != "still mine" {
		t.Error("other bytes")
	}
}

// cgroup makes a memory cgroup of limit bytes that ends with the test, and gives the file that takes processes and the
// one that says how often it was full.
func cgroup(t *testing.T, limit uint64) (procs, events string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: only root can make a cgroup")
	}
	name := fmt.Sprintf("tendril-test-%d", os.Getpid())
	for _, kind := range []struct{ root, limit, events string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.failcnt"},
		{"/sys/fs/cgroup", "memory.max", "memory.events"},
	} {
		dir := filepath.Join(kind.root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() {
			for range 500 { // until the processes are gone
				if unix.Rmdir(dir) != unix.EBUSY {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue // a plain directory: what is written there limits nobody
		}
		if os.WriteFile(filepath.Join(dir, kind.limit), []byte(strconv.FormatUint(limit, 10)), 0o644) == nil {
			return filepath.Join(dir, "cgroup.procs"), filepath.Join(dir, kind.events)
		}
	}
	t.Skip("skipped: no memory cgroup can be made here (neither version 1 nor 2 is writable)")
	return "", ""
}

// limitedProcess writes objects of LIMITED_BYTES in all as a member of the cgroup that LIMITED_CGROUP names.
func limitedProcess() {
	total, err := strconv.ParseUint(os.Getenv("LIMITED_BYTES"), 10, 64)
	if err == nil {
		err = os.WriteFile(os.Getenv("LIMITED_CGROUP"), []byte(strconv.Itoa(os.Getpid())), 0o644)
	}
	var c *client.Conn
	if err == nil {
		c, err = client.Dial(context.Background(), client.Options{})
	}
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	const each = 64 << 20
	for at := uint64(0); at < total; at += each {
		buf, err := c.Create(context.Background(), each, client.CreateOptions{Name: fmt.Sprint("part", at),
			Class: object.Named})
		if err != nil {
			fmt.Println("failed:", err)
			return
		}
		b := buf.Bytes()
		for i := 0; i < len(b); i += 4096 {
			b[i] = byte(i >> 12)
		}
		o, err := buf.Seal(context.Background())
		if err != nil {
			fmt.Println("failed:", err)
			return
		}
		o.Release()
	}
	fmt.Println("wrote")
}

// TestClientOfASmallCgroup: memory of the store is the daemon's charge: a client whose cgroup has a quarter of what it
// writes is neither killed nor slowed by it. TENDRIL_CGROUP_BYTES sets the limit (64 MiB; four times as much is
// written).
func TestClientOfASmallCgroup(t *testing.T) {
	limit := uint64(64 << 20)
	if n, err := strconv.ParseUint(os.Getenv("TENDRIL_CGROUP_BYTES"), 10, 64); err == nil {
		limit = n
	}
	procs, events := cgroup(t, limit)
	n := startNode(t, store.Options{CapacityBytes: 4*limit + 256<<20})
	t.Setenv("LIMITED_CGROUP", procs)
	t.Setenv("LIMITED_BYTES", strconv.FormatUint(4*limit, 10))
	p := start(t, "limited", n.socket)
	if got := p.line(t); got != "wrote" {
		t.Errorf("the client said %q", got)
	}
	b, err := os.ReadFile(events)
	if text := strings.TrimSpace(string(b)); err != nil || text != "0" &&
		(!strings.Contains(text, "oom_kill 0") || !strings.Contains(text, "max 0")) {
		t.Errorf("the cgroup reached its limit: %q, %v", text, err)
	}
	if used := n.store.Status().UsedBytes; used != 4*limit {
		t.Errorf("%d bytes are there, want %d", used, 4*limit)
	}
}

// TestPinningEverythingEndsAtTheQuota: a client that pins and holds all it can is stopped by its tenant's quota; others
// are served.
func TestPinningEverythingEndsAtTheQuota(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 64 << 20, TenantBytes: 24 << 20, SegmentBytes: 1 << 20,
		SpillDir: t.TempDir()})
	greedy := n.dial(t)
	yes := true
	var err error
	held := 0
	for ; held < 100 && err == nil; held++ {
		var o *client.Object
		if o, err = greedy.Put(context.Background(), make([]byte, 2<<20),
			client.CreateOptions{Name: fmt.Sprint(held), Class: object.Named}); err == nil {
			err = greedy.Update(context.Background(), o.ID(), client.Change{Pinned: &yes}) // and its reference is kept
		}
	}
	if !errors.Is(err, object.ErrQuota) || held < 8 {
		t.Fatalf("%d objects, then %v", held, err)
	}
	if !strings.Contains(err.Error(), strconv.Itoa(24<<20)) || !strings.Contains(err.Error(), "delete objects") {
		t.Errorf("the error says neither the quota nor what to do: %v", err)
	}
	if os.Getuid() != 0 {
		return
	}
	reachable(t, n)
	t.Setenv("PUT_UID", strconv.Itoa(stranger))
	p := start(t, "putter", n.socket)
	if got := p.line(t); got != "put" {
		t.Errorf("another tenant: %s", got)
	}
}

func init() {
	processes["putter"] = func() {
		uid, err := strconv.Atoi(os.Getenv("PUT_UID"))
		if err == nil {
			err = become(uid)
		}
		var c *client.Conn
		if err == nil {
			c, err = client.Dial(context.Background(), client.Options{})
		}
		if err == nil {
			var o *client.Object
			if o, err = c.Put(context.Background(), make([]byte, 20<<20), client.CreateOptions{}); err == nil {
				o.Release()
			}
		}
		if err != nil {
			fmt.Println("failed:", err)
			return
		}
		fmt.Println("put")
	}
}

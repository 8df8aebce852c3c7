package raftnode

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tendril/cluster/fsm"
	"tendril/store/object"
	until "tendril/tools/e2e/await"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("RAFTNODE_TEST_PROPOSER"); dir != "" {
		proposeForever(dir)
	}
	until.Main(m, goleak.IgnoreAnyFunction("tendril/cluster/raftnode.(*engine).outcome.func1"))
}

func options(dir string) Options {
	return Options{Dir: dir, ID: "n1", SegmentBytes: 64 << 10, RetryInterval: 5 * time.Millisecond}
}

func open(t testing.TB, o Options) *Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	n, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func request(i int) (u fsm.UUID) {
	binary.BigEndian.PutUint64(u[:], uint64(i)+1)
	return u
}

func set(i int) *fsm.SetPolicy {
	return &fsm.SetPolicy{Policy: fsm.Policy{Key: fmt.Sprint("k", i), Value: bytes.Repeat([]byte{byte(i)}, 100)}}
}

func propose(t testing.TB, n *Node, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if _, err := n.Propose(context.Background(), request(i), set(i)); err != nil {
			t.Fatalf("proposal %d: %v", i, err)
		}
	}
}

// has reports how many of the policies k0…k(n-1) are there.
func has(s *fsm.State, n int) (found int) {
	for i := range n {
		if p, ok := s.Policy(fmt.Sprint("k", i)); ok && bytes.Equal(p.Value, bytes.Repeat([]byte{byte(i)}, 100)) {
			found++
		}
	}
	return found
}

func read(t testing.TB, n *Node, want int) {
	t.Helper()
	got := 0
	if err := n.Read(context.Background(), func(s *fsm.State) { got = has(s, want) }); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("%d of %d are there", got, want)
	}
}

func TestRestartKeepsEverything(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		n := open(t, options(dir))
		viewed := 0
		n.View(func(s *fsm.State) { viewed = has(s, round*50) })
		if viewed != round*50 {
			t.Fatalf("round %d: %d are in view after Open", round, viewed)
		}
		propose(t, n, round*50, round*50+50)
		read(t, n, round*50+50)
		if s := n.Status(); s.State != "Leader" || s.Leader != "n1" || len(s.Members) != 1 || s.AppliedIndex < 50 {
			t.Errorf("%+v", s)
		}
		for range 2 {
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Close gives every call under way an answer: raft forgets what it had queued when it ended.
func TestCloseAnswersEveryCall(t *testing.T) {
	for range 60 {
		n := open(t, options(t.TempDir()))
		ctx, cancel := context.WithCancel(context.Background())
		var calls sync.WaitGroup
		for i := range 32 {
			calls.Go(func() {
				for {
					_, err := n.ReadIndex(ctx)
					if i%2 == 0 {
						_, err = n.Propose(ctx, request(i), set(i))
					}
					if err != nil {
						return
					}
				}
			})
		}
		propose(t, n, 100, 103)
		closed := make(chan error, 1)
		go func() { closed <- n.Close() }()
		select {
		case err := <-closed:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(5 * time.Minute):
			t.Fatal("Close waits for a call that nobody answers")
		}
		calls.Wait()
		cancel()
	}
}

func TestRefusalsCarryTheirSentinel(t *testing.T) {
	n := open(t, options(t.TempDir()))
	r, err := n.Propose(context.Background(), request(1), &fsm.RemoveTenant{Name: "nobody"})
	if !errors.Is(err, object.ErrNotFound) || r.Code != object.ErrNotFound.Code() {
		t.Fatal(r, err)
	}
	if _, _, err := n.ProposeEncoded(context.Background(), []byte("nonsense")); !errors.Is(err, object.ErrVersion) &&
		!errors.Is(err, object.ErrProtocol) {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := n.Propose(ended, request(2), set(2)); !errors.Is(err, object.ErrTimeout) {
		t.Fatalf("proposed under a context that had ended: %v", err)
	}
	n.Close()
	if _, err := n.Propose(context.Background(), request(3), set(3)); !errors.Is(err, object.ErrBusy) {
		t.Fatal(err)
	}
}

func TestTwoOnOneDirectory(t *testing.T) {
	dir := t.TempDir()
	n := open(t, options(dir))
	second := options(dir)
	second.lockTime = time.Second
	if _, err := Open(context.Background(), second); !errors.Is(err, object.ErrBusy) {
		t.Fatal(err)
	}
	propose(t, n, 0, 1)
}

// TestAfterAKilledDaemon: the lock of a daemon that was killed may be with a child of its for as long as that gets no
// processor. Who comes after waits for it.
func TestAfterAKilledDaemon(t *testing.T) {
	dir := t.TempDir()
	open(t, options(dir)).Close()
	child, err := lockDir(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	gone := time.AfterFunc(3*time.Second, func() { child.Close() })
	defer gone.Stop()
	open(t, options(dir))
}

func TestAnotherNodesDirectory(t *testing.T) {
	dir := t.TempDir()
	open(t, options(dir)).Close()
	o := options(dir)
	o.ID = "n2"
	if _, err := Open(context.Background(), o); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "n1") {
		t.Fatal(err)
	}
}

// TestTakenOutOfTwo: a node that was taken out of a cluster of two, and has heard so, starts again: the directory is
// its own, although the last configuration has the other one alone.
func TestTakenOutOfTwo(t *testing.T) {
	nodes, _ := three(t)
	leader, out := nodes["n1"].Raft(), nodes["n3"]
	if err := leader.RemoveServer("n2", 0, 0).Error(); err != nil {
		t.Fatal(err)
	}
	heard := func() bool {
		f := out.Raft().GetConfiguration()
		return f.Error() == nil && len(f.Configuration().Servers) == 1
	}
	until.Until(t, "the node has heard that it was taken out", func() bool { // the leader does not see to that
		if err := leader.RemoveServer("n3", 0, 0).Error(); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if heard() {
				return true
			}
			time.Sleep(5 * time.Millisecond) // Pause: between two looks
		}
		err := leader.AddNonvoter("n3", raft.ServerAddress(out.opts.Address), 0, 0).Error()
		if err != nil {
			t.Fatal(err)
		}
		return false
	})
	o := out.opts
	out.Close()
	o.Join, o.Stream = false, nil
	open(t, o)
}

func TestSnapshotsAreBounded(t *testing.T) {
	dir := t.TempDir()
	o := options(dir)
	o.SnapshotBytes, o.TrailingEntries = 2000, 5
	n := open(t, o)
	propose(t, n, 0, 600)
	deadline := time.Now().Add(5 * time.Minute)
	for n.Status().SnapshotIndex < 300 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
		propose(t, n, 0, 1)
	}
	last := n.Status().SnapshotIndex
	n.Close()
	kept, _ := filepath.Glob(filepath.Join(dir, "snapshots", "*"))
	if len(kept) == 0 || len(kept) > retainSnapshots+1 {
		t.Errorf("%d snapshots are kept: %v", len(kept), kept)
	}
	n = open(t, o)
	if got := n.Status().SnapshotIndex; got < last {
		t.Errorf("once it is open again its snapshot is of entry %d, before it was %d", got, last)
	}
	read(t, n, 600)
}

// The leader looks at its status four times a second: what raft itself tells in twenty texts takes 4 KiB each time.
func TestAStatusTakesLittle(t *testing.T) {
	n := open(t, options(t.TempDir()))
	const looks = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range looks {
		n.Status()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / looks; each > 2<<10 {
		t.Errorf("a status takes %d bytes of memory", each)
	}
}

// TestDamage flips one byte, or cuts or removes one file, and opens: the node refuses or has everything. Nothing
// between.
func TestDamage(t *testing.T) {
	whole := t.TempDir()
	o := options(whole)
	o.SnapshotBytes, o.TrailingEntries = 6000, 5
	const entries = 250
	n := open(t, o)
	propose(t, n, 0, entries)
	n.Close()
	files := listFiles(t, whole)
	r := rand.New(rand.NewPCG(1, 2))
	refused, intact := 0, 0
	try := func(what string, damage func(dir string)) {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		damage(dir)
		again := o
		again.Dir = dir
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		n, err := Open(ctx, again)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, object.ErrVersion) || !strings.Contains(err.Error(),
				"restore") && !strings.Contains(err.Error(), "remove") && !strings.Contains(err.Error(), "upgrade") {
				t.Errorf("%s: no clear refusal: %v", what, err)
			}
			refused++
			return
		}
		intact++
		read(t, n, entries)
		n.Close()
	}
	for _, f := range files {
		size := f.used
		// The first bytes are of every class: magic, version, lengths, indices, terms, types, checksums, and the first
		// frame behind them.
		places := []int64{size - 1}
		for at := range min(size, 64) {
			if !testing.Short() || at%8 == 0 {
				places = append(places, at)
			}
		}
		for range 12 {
			places = append(places, r.Int64N(size))
		}
		for _, at := range places {
			try(fmt.Sprintf("%s, byte %d of %d", f.name, at, size),
				func(dir string) { flip(t, filepath.Join(dir, f.name), at) })
		}
		try(f.name+" cut", func(dir string) { os.Truncate(filepath.Join(dir, f.name), size/2) })
		try(f.name+" emptied", func(dir string) { os.Truncate(filepath.Join(dir, f.name), 0) })
		try(f.name+" removed", func(dir string) { os.Remove(filepath.Join(dir, f.name)) })
	}
	if refused < 10 || intact < 3 {
		t.Errorf("%d refused, %d intact: the test does not test", refused, intact)
	}
	t.Logf("%d refused, %d intact", refused, intact)
}

type file struct {
	name string
	used int64 // bytes up to the last that is not zero
}

func listFiles(t *testing.T, dir string) (files []file) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || name == "lock" {
			return err
		}
		raw, err := os.ReadFile(filepath.Join(dir, name))
		files = append(files, file{name, int64(len(bytes.TrimRight(raw, "\x00")))})
		return err
	})
	if err != nil || len(files) < 6 {
		t.Fatal(files, err)
	}
	return files
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[at] ^= 0x40
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestLogFailsAndComesBack takes the log away under raft: the proposer hears of it, the view stays, and the node mends
// itself.
func TestLogFailsAndComesBack(t *testing.T) {
	n := open(t, options(t.TempDir()))
	propose(t, n, 0, 10)
	n.engine.log.WAL.Close()
	_, err := n.Propose(context.Background(), request(10), set(10))
	if err == nil || !strings.Contains(err.Error(), "same request id") {
		t.Fatal(err)
	}
	seen := 0
	n.View(func(s *fsm.State) { seen = has(s, 10) })
	if seen != 10 {
		t.Errorf("%d in view", seen)
	}
	proposeUntilDone(t, n, 10)
	read(t, n, 11)
}

func proposeUntilDone(t *testing.T, n *Node, i int) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if _, err = n.Propose(context.Background(), request(i), set(i)); err == nil {
			return
		}
	}
	t.Fatalf("the node did not come back: %v; %+v", err, n.Status())
}

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tendril-test", dir, "tmpfs", 0, "size=700k"); err != nil {
		t.Skipf("a small file system needs root: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	n := open(t, options(filepath.Join(dir, "raft")))
	filler := filepath.Join(dir, "filler")
	done, err := 0, error(nil)
	for ; done < 20000 && err == nil; done++ {
		if done == 100 { // the disk fills up while the node runs
			os.WriteFile(filler, make([]byte, 1<<20), 0o600)
		}
		_, err = n.Propose(context.Background(), request(done), set(done%500))
		if errors.Is(err, object.ErrBusy) { // epoch: the state machine's refusal of a repeated key
			err = nil
		}
	}
	if !errors.Is(err, object.ErrFull) || !strings.Contains(err.Error(), "disk space") {
		t.Fatalf("after %d proposals: %v", done, err)
	}
	t.Logf("full after %d proposals: %v", done, err)
	n.View(func(s *fsm.State) {
		if has(s, 100) != 100 {
			t.Errorf("%d of 100 in view", has(s, 100))
		}
	})
	if s := n.Status(); s.State == "Failed" && s.Fault == "" {
		t.Errorf("%+v", s)
	}
	os.Remove(filler)
	proposeUntilDone(t, n, 700)
	n.Close()
	n = open(t, options(filepath.Join(dir, "raft")))
	read(t, n, 100)
	n.Close()
}

func proposeForever(dir string) {
	n, err := Open(context.Background(), options(dir))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		if _, err := n.Propose(context.Background(), request(i), set(i%1000)); err != nil &&
			!errors.Is(err, object.ErrBusy) {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(i)
	}
}

// TestKill kills a proposing process and looks for everything that it was told is kept.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "RAFTNODE_TEST_PROPOSER="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, last := bufio.NewScanner(out), -1
		for lines.Scan() {
			i, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatal(lines.Text())
			}
			if last = i; i == 300 {
				cmd.Process.Kill()
			}
		}
		cmd.Wait()
		n := open(t, options(dir))
		read(t, n, min(last+1, 1000))
		n.Close()
	}
}

func TestLevels(t *testing.T) {
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	log.SetLevel(logrus.TraceLevel)
	l := bridge(log, logrus.WarnLevel)
	l.Debug("d")
	l.Info("i")
	l.Warn("w", "key", hclog.Fmt("<%d>", 7))
	l.Error("e")
	for range 3 {
		l.Error("failed to heartbeat to", "peer", "n2", "error", "gone")
		l.Error("failed to heartbeat to", "peer", "n3", "error", "gone")
		l.Error("failed to decode incoming command", "error", "use of closed network connection")
	}
	if s := out.String(); strings.Count(s, `level=warning msg="failed to heartbeat to"`) != 2 ||
		strings.Count(s, "level=error") != 1 || !strings.Contains(s, `level=debug msg="failed to decode`) {
		t.Error(s)
	}
	if s := out.String(); strings.Contains(s, "msg=d") || strings.Contains(s, "msg=i") || !strings.Contains(s,
		"level=warning msg=w") || !strings.Contains(s, "<7>") || !strings.Contains(s, "level=error msg=e") {
		t.Error(s)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	err := Options{Dir: "rel", SegmentBytes: 1, RetryInterval: 1, Join: true}.Validate()
	for _, want := range []string{"rel", "node id", "segments of 1", "1ns", "stream layer"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}

// tcpLayer is a stream layer without authentication, for tests.
type tcpLayer struct{ net.Listener }

func (tcpLayer) Dial(a raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(a), timeout)
}

// leadsFor is how long the first of three nodes leads though none of them has a processor; another one is elected when
// it has been closed for so long and could not hand over.
const leadsFor = 10 * time.Second

// three opens three nodes over a stream layer; the first leads, and all vote. edit alters the first one's options.
func three(t testing.TB, edit ...func(*Options)) (nodes map[string]*Node, ids []string) {
	nodes, ids = map[string]*Node{}, []string{"n1", "n2", "n3"}
	addresses := map[string]string{}
	for i, id := range ids {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		o := options(t.TempDir())
		o.ID, o.Address, o.Join, o.electionTimeout = id, l.Addr().String(), i > 0, leadsFor
		o.Stream = func() (layer raft.StreamLayer, err error) {
			err = errors.New("only once in this test")
			once.Do(func() { layer, err = tcpLayer{l}, nil })
			return layer, err
		}
		for _, f := range edit {
			if i == 0 {
				f(&o)
			}
		}
		nodes[id], addresses[id] = open(t, o), o.Address
	}
	propose(t, nodes["n1"], 0, 5)
	for _, id := range ids[1:] {
		if err := nodes["n1"].Raft().AddVoter(raft.ServerID(id), raft.ServerAddress(addresses[id]), 0,
			5*time.Minute).Error(); err != nil {
			t.Fatal(err)
		}
	}
	return nodes, ids
}

// TestThree runs three nodes: the follower names the leader, and what was done survives the leader.
func TestThree(t *testing.T) {
	nodes, ids := three(t)
	propose(t, nodes["n1"], 5, 20)
	read(t, nodes["n1"], 20)
	var notLeader *NotLeaderError
	if err := nodes["n2"].Read(context.Background(), func(*fsm.State) {}); !errors.As(err, &notLeader) ||
		notLeader.LeaderID != "n1" || !errors.Is(err, object.ErrBusy) {
		t.Fatal(err)
	}
	nodes["n1"].Close()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		for _, id := range ids[1:] {
			if _, err := nodes[id].Propose(context.Background(), request(20), set(20)); err == nil {
				read(t, nodes[id], 21)
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no new leader: %+v", nodes["n2"].Status())
		}
	}
}

// endsRaft is a logger's hook that has the goroutine end that writes a line, as a fault of the log does.
type endsRaft struct {
	line string
	due  atomic.Bool
	fail atomic.Pointer[func(error)]
}

func (*endsRaft) Levels() []logrus.Level { return logrus.AllLevels }

func (h *endsRaft) Fire(e *logrus.Entry) error {
	if e.Message == h.line && h.due.CompareAndSwap(true, false) {
		(*h.fail.Load())(errors.New("an entry cannot be read"))
		runtime.Goexit()
	}
	return nil
}

// TestFaultWhileLeading: raft's main goroutine of a leader ends by a fault, so that nobody answers a request to hand
// over. The node is closed all the same.
func TestFaultWhileLeading(t *testing.T) {
	hook := &endsRaft{line: "updating configuration"}
	nodes, _ := three(t, func(o *Options) {
		log := logrus.New()
		log.SetOutput(io.Discard)
		log.AddHook(hook)
		o.Log = log
	})
	n := nodes["n1"]
	e, err := n.current()
	if err != nil {
		t.Fatal(err)
	}
	fail := e.fail
	hook.fail.Store(&fail)
	hook.due.Store(true)
	members := map[string]bool{"n4": false}
	for _, m := range n.Status().Members {
		members[m.ID] = true
	}
	if _, err := n.SetMembers(context.Background(), members); err == nil {
		t.Error("a member was added by a raft that has ended")
	}
	closed := make(chan error)
	go func() { closed <- n.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Minute):
		t.Fatal("Close waits for a raft that has ended")
	}
}

// A pipeline whose answers nobody takes any more does not stop its sender for ever. A daemon that ended hung so, once
// in some hundred runs of its tests.
func TestPipelineThatIsStuck(t *testing.T) {
	transport := func() *network {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		e := &engine{log: newLogStore(nil, nil, nil)}
		o := Options{Stream: func() (raft.StreamLayer, error) { return tcpLayer{l}, nil }}
		trans, err := e.transport(o, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeTransport(trans) })
		return trans.(*network)
	}
	leader, follower := transport(), transport()
	leader.limit = 50 * time.Millisecond
	over := make(chan struct{})
	defer close(over)
	go func() { // it refuses
		for {
			select {
			case rpc := <-follower.Consumer():
				rpc.Respond(&raft.AppendEntriesResponse{}, nil)
			case <-over:
				return
			}
		}
	}()
	p, err := leader.AppendEntriesPipeline("n2", follower.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for sent := 0; err == nil; sent++ { // and nobody takes that
		if sent > 1000 {
			t.Fatal("it takes all")
		}
		_, err = p.AppendEntries(&raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{})
	}
	// Where this process had no processor for so long, the connection was closed before a request was sent.
	if !errors.Is(err, raft.ErrPipelineShutdown) && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// awayLayer reaches nobody until the other one is back.
type awayLayer struct {
	tcpLayer
	back atomic.Bool
}

func (l *awayLayer) Dial(a raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if !l.back.Load() {
		return nil, unix.ECONNREFUSED
	}
	return l.tcpLayer.Dial(a, timeout)
}

// TestFollowerThatIsBackIsHeard: entries for a follower that is away are sent again until it is back, so that raft
// counts no failure and does not wait after it; but no longer than this node leads. Heartbeats fail at once.
func TestFollowerThatIsBackIsHeard(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{failed: make(chan struct{}), log: newLogStore(nil, nil, nil)}
	layer := &awayLayer{tcpLayer: tcpLayer{l}}
	trans, err := e.transport(Options{Stream: func() (raft.StreamLayer, error) { return layer, nil }},
		hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer closeTransport(trans)
	leader := trans.(*network)
	away, err := net.Listen("tcp", "127.0.0.1:0") // it keeps its port: another process could take one that is free
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	at := raft.ServerAddress(away.Addr().String())

	entries := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 1}
	if err := leader.AppendEntries("n2", at, entries, &raft.AppendEntriesResponse{}); err == nil {
		t.Error("it was sent to nobody, by a node that does not lead")
	}
	failed, answers := 0, make(chan struct{})
	leader.wanted = func(term uint64, follower raft.ServerID) bool {
		if term != 3 || follower != "n2" {
			t.Errorf("term %d of %q is asked about", term, follower)
		}
		if failed++; failed == 3 {
			layer.back.Store(true)
			follower := raft.NewNetworkTransport(tcpLayer{away}, 3, 5*time.Minute, io.Discard)
			t.Cleanup(func() { follower.Close(); <-answers })
			go func() {
				defer close(answers)
				rpc := <-follower.Consumer()
				rpc.Respond(&raft.AppendEntriesResponse{Term: 3, Success: true}, nil)
			}()
		}
		return true
	}
	beat := &raft.AppendEntriesRequest{Term: 3}
	if err := leader.AppendEntries("n2", at, beat, &raft.AppendEntriesResponse{}); err == nil || failed > 0 {
		t.Errorf("a heartbeat to a follower that is away: %v", err)
	}
	resp := &raft.AppendEntriesResponse{}
	if err := leader.AppendEntries("n2", at, entries, resp); err != nil || !resp.Success || failed != 3 {
		t.Errorf("entries for a follower that is back: %v after %d attempts", err, failed)
	}
	close(e.failed)
	leader.wanted = func(uint64, raft.ServerID) bool { return true }
	layer.back.Store(false)
	if err := leader.AppendEntries("n3", raft.ServerAddress("127.0.0.1:1"), entries, resp); err == nil {
		t.Error("a node that ends goes on to send")
	}
}

func BenchmarkPropose(b *testing.B) {
	n := open(b, Options{Dir: b.TempDir(), ID: "n1"})
	b.ResetTimer()
	for i := range b.N {
		if _, err := n.Propose(context.Background(), request(i), &fsm.Nop{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	n := open(b, Options{Dir: b.TempDir(), ID: "n1"})
	for range b.N {
		if err := n.Read(context.Background(), func(*fsm.State) {}); err != nil {
			b.Fatal(err)
		}
	}
}

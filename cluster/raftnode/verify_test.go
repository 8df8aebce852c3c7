package raftnode

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	until "tendril/tools/e2e/await"
)

func voters(ids ...raft.ServerID) (servers []raft.Server) {
	for _, id := range ids {
		servers = append(servers, raft.Server{ID: id, Suffrage: raft.Voter})
	}
	return servers
}

// TestMajorityAgrees: a read goes on once a majority of the voters follows this node in its term, and is refused once
// there can be none.
func TestMajorityAgrees(t *testing.T) {
	for _, c := range []struct {
		voters  []raft.ServerID
		follows map[raft.ServerID]bool
		good    bool
	}{
		{[]raft.ServerID{"me"}, nil, true},
		{[]raft.ServerID{"me", "b"}, nil, false},
		{[]raft.ServerID{"me", "b", "c"}, map[raft.ServerID]bool{"c": true}, true},
		{[]raft.ServerID{"me", "b", "c"}, nil, false},
		{[]raft.ServerID{"me", "b", "c", "d", "e"}, map[raft.ServerID]bool{"c": true}, false},
		{[]raft.ServerID{"me", "b", "c", "d", "e"}, map[raft.ServerID]bool{"c": true, "e": true}, true},
		{[]raft.ServerID{"b", "c"}, map[raft.ServerID]bool{"c": true}, false}, // this node has no vote
		{[]raft.ServerID{"b", "c"}, map[raft.ServerID]bool{"b": true, "c": true}, true},
	} {
		f := newFollowers(func(id raft.ServerID, _ raft.ServerAddress, term uint64) bool {
			return term == 7 && c.follows[id]
		})
		servers := append(voters(c.voters...), raft.Server{ID: "silent", Suffrage: raft.Nonvoter})
		err := <-f.begin("me", servers, 7)
		var notLeader *NotLeaderError
		if (err == nil) != c.good || err != nil && !errors.As(err, &notLeader) {
			t.Errorf("voters %v, of which %v follow: %v", c.voters, c.follows, err)
		}
		f.running.Wait()
	}
}

// TestAnswerUnderWayCountsForEarlierReads: an answer counts for no read that began after its question; reads that wait
// share the next one.
func TestAnswerUnderWayCountsForEarlierReads(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan bool)
	f := newFollowers(func(raft.ServerID, raft.ServerAddress, uint64) bool { asked <- struct{}{}; return <-answer })
	first := f.begin("me", voters("me", "b"), 7)
	<-asked
	second, third := f.begin("me", voters("me", "b"), 7), f.begin("me", voters("me", "b"), 7)
	answer <- true
	if err := <-first; err != nil {
		t.Error(err)
	}
	<-asked
	for _, later := range []<-chan error{second, third} {
		select {
		case err := <-later:
			t.Fatalf("an answer to an earlier question was taken: %v", err)
		default:
		}
	}
	answer <- false
	for _, later := range []<-chan error{second, third} {
		if err := <-later; err == nil {
			t.Error("the voter follows somebody else, and the read went on")
		}
	}
	f.running.Wait()
}

// TestVotersThatWereRemovedAreForgotten: what is kept of a voter goes with the questions to it.
func TestVotersThatWereRemovedAreForgotten(t *testing.T) {
	f := newFollowers(func(raft.ServerID, raft.ServerAddress, uint64) bool { return true })
	for _, id := range []raft.ServerID{"b", "c", "d"} { // one after the other is the other voter
		if err := <-f.begin("me", voters("me", id), 7); err != nil {
			t.Fatal(err)
		}
	}
	f.close()
	if len(f.voters) > 0 {
		t.Errorf("nobody is asked, and %d voters are kept", len(f.voters))
	}
}

// pausedLayer can keep a leader from what its followers answer, as a process that stands still keeps itself.
type pausedLayer struct {
	net.Listener
	mu      sync.Mutex
	changed *sync.Cond
	paused  bool            // answers are not given to raft
	unread  map[string]bool // followers that have answered since: once it is both, nothing is sent any more
}

func (l *pausedLayer) Dial(a raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if l.haveUnread() == 2 {
		return nil, net.ErrClosed
	}
	c, err := net.DialTimeout("tcp", string(a), timeout)
	if err != nil {
		return nil, err
	}
	return &pausedConn{c, l}, nil
}

func (l *pausedLayer) pause(is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = is
	l.changed.Broadcast()
}

func (l *pausedLayer) haveUnread() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.unread)
}

type pausedConn struct {
	net.Conn
	layer *pausedLayer
}

func (c *pausedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.layer.mu.Lock()
	defer c.layer.mu.Unlock()
	for c.layer.paused && n > 0 {
		c.layer.unread[c.RemoteAddr().String()] = true
		c.layer.changed.Wait()
	}
	return n, err
}

func (c *pausedConn) Write(p []byte) (int, error) {
	if c.layer.haveUnread() == 2 { // the network has gone
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// TestOldAnswersProveNothing: a leader that finds answers of its followers unread when it wakes does not take them for
// a proof that it leads still. Another node may have been elected since, and have done what the read must show.
// The leader gives up after leadsFor.
func TestOldAnswersProveNothing(t *testing.T) {
	layer := &pausedLayer{unread: map[string]bool{}}
	layer.changed = sync.NewCond(&layer.mu)
	nodes, _ := three(t, func(o *Options) {
		inner := o.Stream
		o.Stream = func() (raft.StreamLayer, error) {
			l, err := inner()
			if err != nil {
				return nil, err
			}
			layer.Listener = l.(tcpLayer).Listener
			return layer, nil
		}
	})
	read(t, nodes["n1"], 5)
	layer.pause(true)
	until.Until(t, "answers of both followers are unread", func() bool { return layer.haveUnread() == 2 })
	outcome := make(chan error, 1)
	go func() { _, err := nodes["n1"].ReadIndex(t.Context()); outcome <- err }()
	// Pause: until the read waits for its proof, or not quite: then it is refused in any case.
	time.Sleep(50 * time.Millisecond)
	layer.pause(false)
	until.Until(t, "the leader has given up", func() bool { return !nodes["n1"].Leads() })
	nodes["n1"].Close()
	if err := <-outcome; err == nil {
		t.Error("answers from before a read have proven that the node leads")
	}
}

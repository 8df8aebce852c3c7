package workers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// fakeRemote is a worker of another machine's session. TLS "succeeds" where a lane's first line is "good".
func fakeRemote(control *net.UnixConn, mode string) {
	buf, oob := make([]byte, clwire.MaxControlBytes), make([]byte, unix.CmsgSpace(4))
	for {
		n, on, _, _, err := control.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		var m clwire.DaemonMessage
		if err := json.Unmarshal(buf[:n], &m); err != nil {
			panic(err)
		}
		switch {
		case m.AssignRemote != nil && mode == "remote-silent":
			return
		case m.AssignRemote != nil && mode == "remote-mute":
		case m.AssignRemote != nil && mode == "remote-short":
			send(control, clwire.WorkerMessage{RemoteReady: &clwire.RemoteReady{CertificateSHA256: []byte("short")}})
		case m.AssignRemote != nil:
			sum := sha256.Sum256(m.AssignRemote.ClientSHA256)
			send(control, clwire.WorkerMessage{RemoteReady: &clwire.RemoteReady{CertificateSHA256: sum[:]}})
			for i := range 100 * packetsATicket {
				if mode != "remote-floods" {
					break
				}
				control.SetWriteDeadline(time.Now().Add(time.Second)) // the daemon stops listening
				raw, _ := json.Marshal(clwire.WorkerMessage{LaneUp: &clwire.LaneUp{Index: i - 5 + 1<<20}})
				control.Write(raw)
			}
		case m.Lane != nil:
			cmsgs, _ := unix.ParseSocketControlMessage(oob[:on])
			files, err := unix.ParseUnixRights(&cmsgs[0])
			if err != nil || len(files) != 1 {
				panic(fmt.Sprint("descriptors: ", files, err))
			}
			go fakeLane(control, m.Lane.Index, files[0])
		}
	}
}

func fakeLane(control *net.UnixConn, index, fd int) {
	unix.SetNonblock(fd, false)
	file := os.NewFile(uintptr(fd), "lane")
	defer file.Close()
	word := make([]byte, 5)
	if _, err := io.ReadFull(file, word); err != nil || string(word) != "good\n" {
		return
	}
	send(control, clwire.WorkerMessage{LaneUp: &clwire.LaneUp{Index: index}})
	fmt.Fprintf(file, "lane %d\n", index)
	io.Copy(io.Discard, file)
}

// lane makes a connection, has the pool pass it on, and says word.
func lane(t *testing.T, p *Pool, ticket [sha256.Size]byte, remote, word string) (*os.File, error) {
	t.Helper()
	ours, theirs, err := streamPair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	t.Cleanup(func() { ours.Close() })
	if err := p.Lane(ticket, remote, int(theirs.Fd())); err != nil {
		return nil, err
	}
	_, err = ours.WriteString(word)
	return ours, err
}

func answer(t *testing.T, f *os.File) string {
	t.Helper()
	b := make([]byte, 64)
	n, err := f.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return string(b[:n])
}

func openRemote(t *testing.T, p *Pool, alter func(*RemoteRequest)) (OpenedRemote, error) {
	t.Helper()
	platforms, err := p.Platforms(t.Context())
	if err != nil || len(platforms) != 1 {
		t.Fatal(platforms, err)
	}
	r := RemoteRequest{Request: Request{Session: 1, Platform: platforms[0], Tenant: me()},
		ClientSHA256: [32]byte{1}, Lanes: 3}
	if alter != nil {
		alter(&r)
	}
	o, err := p.OpenRemote(t.Context(), r)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.tickets { // none is over before it is shown, however long that takes
		x.expires = time.Now().Add(time.Hour)
	}
	return o, err
}

func TestTicketsOpenLanesOnce(t *testing.T) {
	p, _ := newPool(t, nil, "remote")
	p.Probe()
	o, err := openRemote(t, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := sha256.Sum256(bytes.Join([][]byte{{1}, make([]byte, 31)}, nil))
	if len(o.Tickets) != 3 || o.WorkerSHA256 != want {
		t.Fatalf("%+v", o)
	}
	// A stranger who has seen the ticket comes first, twice, and fails.
	for range 2 {
		f, err := lane(t, p, o.Tickets[1], "", "evil\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := answer(t, f); got != "" {
			t.Errorf("the stranger was answered %q", got)
		}
	}
	for i, ticket := range o.Tickets {
		f, err := lane(t, p, ticket, "", "good\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := answer(t, f); got != fmt.Sprintf("lane %d\n", i) {
			t.Errorf("lane %d: %q", i, got)
		}
	}
	// The worker answers its client before the daemon hears that the lane is up: until then a second connection is let
	// in beside the first, or told that too many are.
	for i, ticket := range o.Tickets {
		for {
			_, err := lane(t, p, ticket, "", "good\n")
			if errors.Is(err, object.ErrPermission) {
				break
			}
			if err != nil && !errors.Is(err, object.ErrBusy) {
				t.Fatalf("ticket %d again: %v", i, err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	if _, err := lane(t, p, [32]byte{}, "", ""); !errors.Is(err, object.ErrPermission) {
		t.Errorf("no ticket at all: %v", err)
	}
}

// A client whose connection broke before the answer came asks once more: it must not get a second worker.
func TestOpenRemoteAgain(t *testing.T) {
	p, _ := newPool(t, nil, "remote")
	p.Probe()
	open := func(client byte, resume bool) OpenedRemote {
		o, err := openRemote(t, p, func(r *RemoteRequest) { r.ClientSHA256[0], r.Resume = client, resume })
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	first, again := open(1, true), open(1, true)
	if again.ID != first.ID || again.WorkerSHA256 != first.WorkerSHA256 || len(again.Tickets) != 3 {
		t.Errorf("%+v, then %+v", first, again)
	}
	if _, err := lane(t, p, first.Tickets[1], "", "good\n"); !errors.Is(err, object.ErrPermission) {
		t.Errorf("a ticket of the answer that was lost: %v", err)
	}
	for i, ticket := range again.Tickets {
		f, err := lane(t, p, ticket, "", "good\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := answer(t, f); got != fmt.Sprintf("lane %d\n", i) {
			t.Errorf("lane %d: %q", i, got)
		}
	}
	if o := open(2, true); o.ID == first.ID {
		t.Error("another certificate got the same worker")
	}
	if a, b := open(3, false), open(3, false); a.ID == b.ID {
		t.Error("a worker whose client cannot come back was given twice")
	}
}

func TestTicketsAreBounded(t *testing.T) {
	p, _ := newPool(t, nil, "remote")
	p.Probe()
	o, err := openRemote(t, p, func(r *RemoteRequest) { r.From = "10.0.0.7" })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lane(t, p, o.Tickets[0], "10.0.0.8:5000", ""); !errors.Is(err, object.ErrPermission) {
		t.Errorf("from elsewhere: %v", err)
	}
	for i := range maxAttempts + 1 {
		_, err := lane(t, p, o.Tickets[0], "10.0.0.7:5000", "")
		if i < maxAttempts && err != nil || i == maxAttempts && !errors.Is(err, object.ErrBusy) {
			t.Errorf("attempt %d: %v", i, err)
		}
		p.mu.Lock()
		attempts := p.tickets[sha256.Sum256(o.Tickets[0][:])].attempts
		for k := range attempts { // none is over before the last one comes, however long that takes
			attempts[k] = time.Now().Add(time.Hour)
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	for _, x := range p.tickets {
		x.expires = time.Now().Add(-time.Second)
	}
	p.mu.Unlock()
	if _, err := lane(t, p, o.Tickets[1], "10.0.0.7:5000", ""); !errors.Is(err, object.ErrPermission) {
		t.Errorf("an expired ticket: %v", err)
	}
	if err := p.Release(1, o.ID); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.tickets) != 0 {
		t.Errorf("%d tickets are left of a worker that has ended", len(p.tickets))
	}
}

// Data of a program of this machine that does without TLS comes from this machine.
func TestTicketsOfThisMachine(t *testing.T) {
	p, _ := newPool(t, nil, "remote")
	p.Probe()
	o, err := openRemote(t, p, func(r *RemoteRequest) { r.Plaintext, r.From = true, ThisMachine })
	if err != nil {
		t.Fatal(err)
	}
	for remote, want := range map[string]bool{"": true, "127.0.0.1:5": true, "127.3.0.1:5": true, "[::1]:5": true,
		"[::ffff:127.0.0.1]:5": true, "10.0.0.7:5": false, "[fd00::7]:5": false, "this machine:5": false} {
		if _, err := lane(t, p, o.Tickets[0], remote, ""); (err == nil) != want {
			t.Errorf("from %q: %v", remote, err)
		}
	}
}

// TestAWorkerThatIsNeverReadyForAnotherMachine: the session's end ends the wait for it, also where the session did not
// have the worker yet.
func TestAWorkerThatIsNeverReadyForAnotherMachine(t *testing.T) {
	for how, end := range map[string]func(p *Pool, cancel context.CancelFunc){
		"it has the worker":         func(p *Pool, _ context.CancelFunc) { p.ReleaseSession(1) },
		"it has not the worker yet": func(_ *Pool, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(how, func(t *testing.T) {
			p, _ := newPool(t, nil, "remote-mute")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			platforms, err := p.Platforms(ctx)
			if err != nil || len(platforms) != 1 {
				t.Fatal(platforms, err)
			}
			ended := make(chan error, 1)
			go func() {
				r := Request{Session: 1, Platform: platforms[0], Tenant: me()}
				_, err := p.OpenRemote(ctx, RemoteRequest{Request: r})
				ended <- err
			}()
			await.Blocked(t, 1, "workers.(*worker).hearRemoteReady")
			end(p, cancel)
			if err := <-ended; !errors.Is(err, object.ErrNoDevice) {
				t.Error(err)
			}
		})
	}
}

func TestWorkersThatBehaveBadlyForAnotherMachine(t *testing.T) {
	for mode, want := range map[string]string{"remote-silent": "get ready", "remote-short": "5 bytes"} {
		p, _ := newPool(t, nil, mode)
		p.Probe()
		if _, err := openRemote(t, p, nil); !errors.Is(err, object.ErrNoDevice) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", mode, err)
		}
		if err := ended(p); err != nil {
			t.Error(err)
		}
	}
	p, _ := newPool(t, nil, "remote-floods")
	p.Probe()
	o, err := openRemote(t, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if alive, text, err := p.Fate(t.Context(), 1, o.ID); !alive || err != nil {
		t.Errorf("fate: %v %q %v", alive, text, err)
	}
}

// Tickets of links are bounded for each session, go with their worker, and are dropped for one link alone.
func TestTicketsOfLinksGoWithTheirWorker(t *testing.T) {
	p, _ := newPool(t, nil, "remote")
	p.Probe()
	a, err := openRemote(t, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := openRemote(t, p, func(r *RemoteRequest) { r.Session = 2 })
	if err != nil {
		t.Fatal(err)
	}
	const lanes = 8
	offer := func(session, worker, link uint64) error {
		_, err := p.OfferPeer(session, worker, link, lanes, nil)
		return err
	}
	have := func(session uint64) (of, all int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.peers.of[session]), len(p.peers.all)
	}
	if err := offer(1, b.ID, 1); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("to another session's worker: %v", err)
	}
	for link := range uint64(maxPeerTickets / lanes) {
		if err := offer(1, a.ID, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := offer(1, a.ID, 1000); !errors.Is(err, object.ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	if err := offer(2, b.ID, 7); err != nil {
		t.Errorf("another session's: %v", err)
	}
	p.SpendPeer(1, a.ID, 7)
	if of, all := have(1); of != maxPeerTickets-lanes || all != maxPeerTickets {
		t.Errorf("when one link is up %d tickets of the session are left, %d of all", of, all)
	}
	if err := p.Release(1, a.ID); err != nil {
		t.Fatal(err)
	}
	if of, all := have(1); of != 0 || all != lanes {
		t.Errorf("when its worker has ended %d tickets of the session are left, %d of all", of, all)
	}
	if err := offer(1, a.ID, 1); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("to a worker that has ended: %v", err)
	}
	p.ReleaseSession(2)
	if of, all := have(2); of != 0 || all != 0 {
		t.Errorf("in the end %d and %d tickets are left", of, all)
	}
}

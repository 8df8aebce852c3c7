package e2e

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril/tools/e2e/rig"
)

// middle is a node that is reached through somebody in the middle.
func middle(t *testing.T, extra ...string) (*rig.Node, *rig.Proxy) {
	t.Helper()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	n := node(t, append([]string{"TENDRIL_LISTEN=127.0.0.1:0"}, extra...)...)
	at, err := n.Listening(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := rig.NewProxy(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	n.Config = t.TempDir()
	logIn(t, n, n.Config, p.Address())
	return n, p
}

// outcome is what a program through the middle came to.
type outcome struct {
	said, complained string
	err              error
}

// through runs a session to its end, however that comes. What comes of one connection is looked at here: the same fault
// would strike the next, too. Silence is soon taken for a loss, so on a busy machine this may end a session, too.
func through(t *testing.T, n *rig.Node, p *rig.Proxy, script string) outcome {
	t.Helper()
	return throughWaiting(t, n, p, script, "0", "1")
}

// whole runs a session that nobody harms, and which is to come to its end.
func whole(t *testing.T, n *rig.Node, p *rig.Proxy) {
	t.Helper()
	o := throughWaiting(t, n, p, wholeScript, "0", "60")
	if o.judge() != nil || o.err != nil {
		t.Fatalf("without a fault: %v\n%s%s", o.err, o.said, o.complained)
	}
}

// throughWaiting is through for a session that may come back, for so many seconds, and whose connection counts as lost
// after so many without a word.
func throughWaiting(t *testing.T, n *rig.Node, p *rig.Proxy, script, onLoss, deadline string) outcome {
	t.Helper()
	cmd := n.Command(t.Context(), "run", "--server", p.Address(), "--on-loss", onLoss, "--", session)
	cmd.Env = append(cmd.Env, "TENDRIL_DEADLINE="+deadline)
	cmd.Stdin = strings.NewReader(script)
	out, complaint, err := rig.Said(cmd, limit)
	return outcome{out, complaint, err}
}

const wholeScript = "open\nadd 5\nverify\nadd 7\nverify\nbuffer 4096\nquit\n"

// judge wants the right answers, or some of them and then an error that says what was wrong.
func (o outcome) judge() error {
	switch {
	case errors.Is(o.err, rig.ErrHung):
		return o.err
	case strings.Contains(o.said, "wrong"):
		return errors.New("a wrong result")
	}
	failed := o.err != nil
	for line := range strings.Lines(o.said) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case word == "ready", word == "good", word == "add" && rest == "0", word == "buffer" &&
			strings.HasPrefix(rest, "0 "):
		default:
			failed = true
		}
	}
	var crash *exec.ExitError
	switch {
	case errors.As(o.err, &crash) && crash.ExitCode() < 0:
		return fmt.Errorf("the program was killed: %w", o.err)
	case !failed && strings.Count(o.said, "good") != 2:
		return errors.New("neither the results nor an error")
	case failed && strings.TrimSpace(o.complained) == "" && !strings.Contains(o.said, "-"):
		return errors.New("an error that says nothing")
	}
	return nil
}

// faultsInTheMiddle are all kinds at every kind of place: preface, handshakes, control connection, lanes.
func faultsInTheMiddle() (list []rig.Fault) {
	places := map[rig.Lane][2][]int64{
		rig.Control: {rig.ToServer: {0, 12, 20, 47, 60, 400, 1700, 2400, 3000},
			rig.ToClient: {0, 200, 900, 2000, 5000}},
		rig.Data: {rig.ToServer: {0, 13, 17, 47, 52, 300, 900, 1500, 4000, 100_000},
			rig.ToClient: {0, 150, 700, 1200, 4000, 100_000}},
	}
	kinds := []rig.Fault{{Cut: true}, {Flip: true}, {Drop: true}, {Double: true}, {Swap: true}}
	i := 0
	for _, lane := range []rig.Lane{rig.Control, rig.Data} {
		for way, offsets := range places[lane] {
			for _, after := range offsets {
				// Not every kind at every place each time: two of the five in turn, so that each kind meets each sort
				// of place.
				for range 2 {
					f := kinds[i%len(kinds)]
					i++
					f.Lane, f.Way, f.After = lane, rig.Way(way), after
					list = append(list, f)
				}
			}
		}
	}
	return list
}

func TestManInTheMiddle(t *testing.T) {
	t.Parallel()
	n, p := middle(t)
	whole(t, n, p)
	struck := 0
	for _, f := range faultsInTheMiddle() {
		p.Set(&f)
		began := time.Now()
		o := through(t, n, p, wholeScript)
		if p.Struck() > 0 {
			struck++
		}
		if err := o.judge(); err != nil {
			t.Errorf("%+v (struck %d times, %v): %v\nsaid: %s\ncomplained: %s\n%v", f, p.Struck(), time.Since(began),
				err, o.said, o.complained, o.err)
		}
		if testing.Verbose() {
			t.Logf("%+v struck %d: %v; %q; %q", f, p.Struck(), time.Since(began).Round(time.Millisecond), o.said,
				o.complained)
		}
	}
	if struck < 40 {
		t.Errorf("only %d faults found their place", struck)
	}
	p.Set(nil)
	whole(t, n, p)
	p.CutAll()
	eventually(t, idle(t.Context(), n))
}

// Somebody in the middle meets a session that may come back: it ends with an error, or goes on exactly where it was.
func TestManInTheMiddleOfASessionThatComesBack(t *testing.T) {
	t.Parallel()
	n, p := middle(t)
	struck, whole := 0, 0
	for i, f := range faultsInTheMiddle() {
		// before there is a session
		if i%3 != 0 && os.Getenv("TENDRIL_LONG") == "" || f.Lane == rig.Control && f.After < 1700 {
			continue
		}
		f.Once = true
		p.Set(&f)
		began := time.Now()
		o := throughWaiting(t, n, p, wholeScript, "60", "1")
		if p.Struck() > 0 {
			struck++
			if o.err == nil && strings.Count(o.said, "good") == 2 {
				whole++
			}
		}
		if err := o.judge(); err != nil {
			t.Errorf("%+v (struck %d times, %v): %v\nsaid: %s\ncomplained: %s\n%v", f, p.Struck(), time.Since(began),
				err, o.said, o.complained, o.err)
		}
		if testing.Verbose() {
			t.Logf("%+v struck %d: %v; %q; %q", f, p.Struck(), time.Since(began).Round(time.Millisecond), o.said,
				o.complained)
		}
	}
	t.Logf("%d faults, %d sessions came through", struck, whole)
	if struck < 8 || whole < struck/2 {
		t.Errorf("%d faults found their place, and %d sessions came through", struck, whole)
	}
	p.Set(nil)
	p.CutAll()
	eventually(t, idle(t.Context(), n))
}

// A line that is slow, in pieces, changes nothing but the time.
func TestSlowLine(t *testing.T) {
	t.Parallel()
	n, p := middle(t)
	for _, way := range []rig.Way{rig.ToServer, rig.ToClient} {
		p.Set(&rig.Fault{Lane: rig.Any, Way: way, Delay: 5 * time.Millisecond})
		whole(t, n, p)
	}
}

// A ticket that was seen on the wire is of no use to others, and its owner comes in nevertheless.
func TestStolenTickets(t *testing.T) {
	t.Parallel()
	n, p := middle(t)
	p.Steal(3)
	whole(t, n, p)
	if p.Struck() < 3 {
		t.Errorf("%d strangers showed tickets", p.Struck())
	}
	p.Steal(0)
	whole(t, n, p)
	p.CutAll()
	eventually(t, idle(t.Context(), n))
}

// What lets somebody in stands in no log, however much is logged: not the owner's, not what strangers make of it.
func TestTicketsAreInNoLog(t *testing.T) {
	t.Parallel()
	n, p := middle(t, "TENDRIL_LOG_LEVEL=debug")
	p.Steal(2)
	whole(t, n, p)
	p.CutAll()
	eventually(t, idle(t.Context(), n))
	log, err := os.ReadFile(filepath.Join(n.Dir, "daemon.log"))
	if err != nil || !strings.Contains(string(log), "level=debug") ||
		!strings.Contains(string(log), "worker serves another machine") {
		t.Fatalf("no log of it: %v\n%s", err, log)
	}
	tickets := p.Tickets()
	if len(tickets) == 0 {
		t.Fatal("no ticket came by")
	}
	for _, ticket := range tickets {
		for _, form := range []string{
			string(ticket), hex.EncodeToString(ticket), base64.StdEncoding.EncodeToString(ticket),
			base64.RawURLEncoding.EncodeToString(ticket),
			strings.Trim(fmt.Sprint(ticket), "[]"), fmt.Sprintf("%q", ticket),
		} {
			if strings.Contains(string(log), form[:min(len(form), 24)]) {
				t.Errorf("a ticket is in the log as %q", form)
			}
		}
	}
}

// A session whose connections are cut ends, and says so to its program, which lives on, where it is not to wait for
// another.
func TestCutSession(t *testing.T) {
	t.Parallel()
	n, proxy := middle(t)
	p := startWith(t, n, "--server", proxy.Address(), "--on-loss", "0", "--deadline", "2m") // slow is not cut
	if got := p.ask("open"); !strings.HasPrefix(got, "ready") {
		t.Fatalf("open: %q\n%s", got, p.err)
	}
	p.want("good", "verify")
	proxy.CutAll()
	p.want("read -5", "verify")
	p.want("errors told", "errors")
	p.in.Close()
	p.ends()
	if !strings.Contains(p.err.String(), "ended") {
		t.Errorf("standard error says nothing of it: %q", p.err)
	}
	eventually(t, idle(t.Context(), n))
}

// Where a session may wait, its program finds results as if nothing had been cut: the daemon knows of no loss
// afterwards.
func TestCutSessionGoesOn(t *testing.T) {
	t.Parallel()
	n, proxy := middle(t)
	p := startWith(t, n, "--server", proxy.Address())
	if got := p.ask("open"); !strings.HasPrefix(got, "ready") {
		t.Fatalf("open: %q\n%s", got, p.err)
	}
	for i := range 5 {
		p.want("add 0", "add %d", i)
		proxy.CutAll()
		p.want("good", "verify")
	}
	p.want("add 0", "add 7")
	p.in.Close()
	p.ends()
	eventually(t, idle(t.Context(), n))
}

// A session whose client is killed does not wait for it for long, one that took leave not at all.
func TestKilledClientIsNotWaitedForLong(t *testing.T) {
	t.Parallel()
	n, proxy := middle(t)
	p := startWith(t, n, "--server", proxy.Address())
	if got := p.ask("open"); !strings.HasPrefix(got, "ready") {
		t.Fatalf("open: %q\n%s", got, p.err)
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
	waits := func() error {
		s, err := n.Status(t.Context())
		if err != nil {
			return err
		}
		if len(s.Sessions) != 1 || s.Sessions[0].WaitsUntil.IsZero() {
			return fmt.Errorf("%+v", s.Sessions)
		}
		return nil
	}
	eventually(t, waits)
	eventually(t, idle(t.Context(), n))
}

// Package trial runs the store's model against a real daemon: processes that put, get, replace, rename, delete,
// persist, compose and stream objects at once, in a store so small that objects go to disk and come back all the time,
// while processes and the daemon are killed and daemons take over from each other. Every byte of every object is
// compared at each get, and again, as long as it is held, after each step of who holds it. What was acknowledged must
// be there: a lane's ledger says what each of its names may have.
//
// A lane is a row of processes, one at a time, that alone changes the names own-LANE-N, gets everybody's, and fights
// over the names all-N. The program that runs a trial starts itself again for them (Client). It trusts the binaries
// that it is given.
package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"tendril/client"
	"tendril/store/object"
	"tendril/tools/e2e/rig"
)

// World is a store and how it is used.
type World struct {
	Name     string
	Env      []string // the daemon's, NAME=value
	Lanes    int
	Visitors int // lanes without names
	// no daemon is killed, but while it hands over: most objects would go with it, and the store has to be full
	Lasting   bool
	LiveBytes uint64        // that names hold together, about
	HeldBytes uint64        // that a process holds
	Sizes     []uint64      // of most objects
	Pause     time.Duration // between two steps of a process: on a machine with other work to do
}

// Worlds are those that found something, or should.
var Worlds = []World{
	{
		Name: "files", Env: []string{"TENDRIL_CAPACITY=64MiB", "TENDRIL_SPILL=200MiB"}, Lanes: 3, LiveBytes: 90 << 20,
		HeldBytes: 6 << 20,
		Sizes:     []uint64{1_100_000, 1_100_000, 1_100_000, 100_000, 64, 4096, 2_500_000, 6_220_800},
	},
	{
		Name: "small disk", Env: []string{"TENDRIL_CAPACITY=32MiB", "TENDRIL_SPILL=16MiB", "TENDRIL_WARM_MEMORY=none"},
		Lanes: 4, Visitors: 8, Lasting: true, LiveBytes: 29 << 20, HeldBytes: 400_000,
		Sizes: []uint64{100_000, 100_000, 100_000, 64, 30_000},
	},
	{
		Name: "frames", Env: []string{"TENDRIL_CAPACITY=256MiB", "TENDRIL_SPILL=600MiB"}, Lanes: 2,
		LiveBytes: 330 << 20, HeldBytes: 20 << 20,
		Sizes: []uint64{6_220_800, 6_220_800, 1_100_000, 100_000},
	},
}

// Options say how a trial goes.
type Options struct {
	Bin      string
	World    World
	Seed     uint64
	Duration time.Duration // of all rounds; at least two
	Round    time.Duration
	Log      func(format string, args ...any)
}

// trial is one that runs.
type trial struct {
	Options
	node  *rig.Node
	dir   string // the ledgers
	rng   *rand.Rand
	lanes []*row
	kills map[string]int
}

// Row is a lane: its processes come one after the other.
type Row struct{ spec laneSpec }

// NewRow makes a lane of a world, which keeps its ledger in dir.
func NewRow(w World, number int, dir string, seed uint64) *Row {
	return &Row{laneSpec{
		Lane: number, Lanes: w.Lanes, Seed: seed, Ledger: filepath.Join(dir, fmt.Sprintf("lane-%d", number)),
		Index: number%2 == 1, Pause: w.Pause,
		Visitor: number >= w.Lanes, LiveBytes: w.LiveBytes / uint64(w.Lanes), HeldBytes: w.HeldBytes, Sizes: w.Sizes,
	}}
}

// Clear forgets what the lane did; none of its objects may be left.
func (r *Row) Clear() error {
	r.spec.Life = 0
	return os.RemoveAll(r.spec.Ledger)
}

// Next is the lane's next process, which works until its standard input ends; the one before has ended. env says where
// the daemon is.
func (r *Row) Next(env []string) (*exec.Cmd, error) {
	text, err := json.Marshal(r.spec)
	r.spec.Life++
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(env, Variable+"="+string(text))
	return cmd, err
}

// row is a lane and its process of now.
type row struct {
	*Row
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *rig.Buffer
	ended chan error // capacity 1
	tally tally
}

// Run runs a trial to its end. The first fault ends it; the error tells it with what the ledgers say of the object.
func Run(ctx context.Context, o Options) (err error) {
	dir, err := os.MkdirTemp("", "tendril-trial-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &trial{Options: o, dir: dir, rng: rand.New(rand.NewPCG(o.Seed, 3)), kills: make(map[string]int)}
	env := append([]string{"TENDRIL_LOG_LEVEL=warn", "TENDRIL_LISTEN=none", "TENDRIL_VENDORS=" + dir}, o.World.Env...)
	if t.node, err = rig.Start(ctx, o.Bin, env...); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, seed %d: %w\nThe daemon's log ends:\n%s", o.World.Name, o.Seed, err, t.node.Log())
		}
		err = errors.Join(err, t.node.Stop())
	}()
	return t.rounds(ctx)
}

// rounds are: a short one in which nobody kills the daemon, whose end says what a daemon holds that has worked; then
// the others.
func (t *trial) rounds(ctx context.Context) error {
	var first *rig.Holdings
	end := time.Now().Add(t.Duration)
	for i := 0; i < 2 || time.Now().Before(end); i++ {
		long := min(t.Round, max(time.Until(end), time.Second))
		if i == 0 {
			long = min(long/4, 10*time.Second)
		}
		if err := t.round(ctx, long, i > 0); err != nil {
			return err
		}
		rest, err := t.node.AtRest(ctx, first)
		if err != nil {
			return err
		}
		if i == 0 {
			first = &rest
		}
		t.Log("%s, round %d: %s; at rest: %s", t.World.Name, i, t.counts(), rest)
		if left, err := filepath.Glob(filepath.Join(t.node.Dir, "state", "objects", "*.*")); err != nil ||
			len(left) > 0 {
			return fmt.Errorf("%d files of objects are left and no object: %v (%w)", len(left),
				left[:min(len(left), 4)], err)
		}
	}
	return nil
}

// round begins and ends with an empty store.
func (t *trial) round(ctx context.Context, long time.Duration, deaths bool) (err error) {
	t.lanes = nil
	defer func() { // whatever happened: nobody stays
		for _, r := range t.lanes {
			r.cmd.Process.Kill()
			<-r.ended
		}
	}()
	for i := range t.World.Lanes + t.World.Visitors {
		r := &row{Row: NewRow(t.World, i, t.dir, t.rng.Uint64())}
		if err := r.Clear(); err != nil {
			return err
		}
		if err := t.start(r); err != nil {
			return err
		}
		t.lanes = append(t.lanes, r)
	}
	for end := time.Now().Add(long); time.Now().Before(end); {
		if err := t.wait(ctx, min(time.Duration(500+t.rng.IntN(3000))*time.Millisecond, time.Until(end))); err != nil {
			return err
		}
		if err := t.death(ctx, deaths); err != nil {
			return err
		}
	}
	if err := t.finish(); err != nil {
		return err
	}
	return t.verify()
}

// start starts a lane's next process.
func (t *trial) start(r *row) error {
	cmd, err := r.Next(t.node.Env())
	if err != nil {
		return err
	}
	r.cmd = cmd
	r.out = new(rig.Buffer)
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	r.ended = make(chan error, 1)
	// ends with the process
	go func(cmd *exec.Cmd, ended chan error) { ended <- cmd.Wait(); close(ended) }(r.cmd, r.ended)
	return nil
}

// wait waits, and tells of a process that ended by itself.
func (t *trial) wait(ctx context.Context, long time.Duration) error {
	end := time.After(long)
	for {
		for _, r := range t.lanes {
			select {
			case <-r.ended:
				return t.explain(errors.New(r.out.String()))
			default:
			}
		}
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// death kills a process, or the daemon where that is allowed, and starts the next; or lets a daemon take over.
func (t *trial) death(ctx context.Context, daemons bool) error {
	n := t.rng.IntN(10)
	switch {
	case n < 6 || !daemons:
		r := t.lanes[t.rng.IntN(len(t.lanes))]
		r.cmd.Process.Kill()
		if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "killed") {
			return t.explain(errors.New(r.out.String()))
		}
		t.kills["process"]++
		return t.start(r)
	case n < 8 && !t.World.Lasting:
		t.kills["daemon"]++
		t.node.Kill()
		return t.node.Restart(ctx)
	case n < 9:
		t.kills["takeover"]++
		return t.node.TakeOver(ctx, rig.Nobody, 0)
	}
	who := rig.Successor
	if !t.World.Lasting {
		who = rig.Death(1 + t.rng.IntN(2))
	}
	t.kills[[]string{"", "predecessor", "successor"}[who]]++
	return t.node.TakeOver(ctx, who, time.Duration(t.rng.IntN(150))*time.Millisecond)
}

// endLimit is what a process has to end; it is in the middle of a step.
const endLimit = 90 * time.Second

// finish has all processes end.
func (t *trial) finish() error {
	for _, r := range t.lanes {
		r.in.Close()
	}
	for _, r := range t.lanes {
		late := time.AfterFunc(endLimit, func() { r.cmd.Process.Signal(syscall.SIGQUIT) }) // it says where it is
		err := <-r.ended
		if !late.Stop() {
			err = fmt.Errorf("lane %d does not end:\n%s\n%s", r.spec.Lane, r.out, rig.Where(t.node.PID()))
		}
		if err == nil {
			err = json.Unmarshal([]byte(r.out.String()), &r.tally)
		}
		if err != nil {
			return t.explain(fmt.Errorf("%w: %s", err, r.out))
		}
	}
	return nil
}

// verify compares what is there with the ledgers, when nobody is there any more, and deletes it.
func (t *trial) verify() error {
	conn, err := client.Dial(context.Background(), client.Options{Socket: t.node.Socket()})
	if err != nil {
		return err
	}
	defer conn.Close()
	l := &lane{conn: conn, laneSpec: laneSpec{Lane: -1}, tally: tally{Refused: make(map[string]int)},
		mark: new(client.Object)}
	for _, r := range t.lanes[:t.World.Lanes] {
		if l.ledger, err = openLedger(r.spec.Ledger); err != nil {
			return err
		}
		l.ledger.file.Close()
		if now := conn.Daemon().Incarnation; now != l.ledger.now { // which the lane did not come to notice
			l.ledger.follow(deed{Do: doRestart, Now: now})
		}
		if err := l.inventory(r.spec.Lane); err != nil {
			return t.explain(fmt.Errorf("at the end, with nobody there: %w", err))
		}
	}
	return Sweep(conn)
}

// inventory gets everything that a lane's names have. Nothing excuses a store that cannot give it.
func (l *lane) inventory(lane int) error {
	for i := range namesPerLane {
		name := nameOf(lane, i)
		var o *client.Object
		err := l.retry(func() (err error) { o, err = l.conn.GetByName(background(), name, 0); return err })
		var t *thing
		if err == nil {
			var got thing
			got, err = recognised(o)
			o.Release()
			t = &got
		} else if errors.Is(err, object.ErrNotFound) {
			err = nil
		}
		if err == nil {
			err = l.ledger.judge(name, t)
		}
		if err == nil && t != nil && len(t.Members) > 0 {
			err = l.tree(o.ID(), *t, true)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

// Sweep deletes every object and stream.
func Sweep(conn *client.Conn) error {
	streams, err := conn.Streams(context.Background(), "")
	if err != nil {
		return err
	}
	for _, s := range streams {
		if err := conn.RemoveStream(context.Background(), s.Name); err != nil && !errors.Is(err, object.ErrNotFound) {
			return err
		}
	}
	for range 3 { // what a composite had is there again without it
		infos, err := conn.List(context.Background(), "", true)
		if err != nil {
			return err
		}
		for _, info := range infos {
			if err := conn.Delete(context.Background(), info.ID); err != nil && !errors.Is(err, object.ErrNotFound) &&
				!errors.Is(err, object.ErrNotSealed) {
				return err
			}
		}
	}
	return nil
}

// counts says what was done in a round.
func (t *trial) counts() string {
	var sum tally
	var refused []string
	for _, r := range t.lanes {
		sum.Steps += r.tally.Steps
		sum.Gets += r.tally.Gets
		sum.Checked += r.tally.Checked
		sum.CheckedBytes += r.tally.CheckedBytes
		for what, n := range r.tally.Refused {
			refused = append(refused, fmt.Sprintf("%d %s", n, what))
		}
	}
	slices.Sort(refused)
	return fmt.Sprintf("%d steps, %d gets, %d looks at %d MiB of what is held; deaths %v; refused: %s",
		sum.Steps, sum.Gets, sum.Checked, sum.CheckedBytes>>20, t.kills, strings.Join(refused, ", "))
}

// what a fault names: an object's name, or its number.
var faultNames = regexp.MustCompile(`(own|all)-\d+(-\d+)?\b`)
var faultNumbers = regexp.MustCompile(`(?:number |\[?\{)(\d{10,})`)

// explain adds what the ledgers say of what a fault names.
func (t *trial) explain(fault error) error {
	words := faultNames.FindAllString(fault.Error(), -1)
	for _, m := range faultNumbers.FindAllStringSubmatch(fault.Error(), -1) {
		words = append(words, m[1])
	}
	var lines []string
	for i := range t.lanes {
		b, err := os.ReadFile(filepath.Join(t.dir, fmt.Sprintf("lane-%d", i)))
		if err != nil {
			continue
		}
		for line := range bytes.Lines(b) {
			if about(line, words) {
				lines = append(lines, fmt.Sprintf("lane %d: %s", i, bytes.TrimSpace(line)))
			}
		}
	}
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(stamp(a), stamp(b)) })
	lines = lines[max(0, len(lines)-mostLines):]
	return fmt.Errorf("%w\nWhat was done, the last %d lines of %v and of the lanes:\n%s", fault, len(lines), words,
		strings.Join(lines, "\n"))
}

const mostLines = 60

// about reports whether a ledger's line tells of one of the words, or of a daemon or a process that came.
func about(line []byte, words []string) bool {
	if bytes.Contains(line, []byte(`"Do":"restart"`)) || bytes.Contains(line, []byte(`"Do":"life"`)) {
		return true
	}
	return slices.ContainsFunc(words, func(w string) bool {
		return bytes.Contains(line, []byte(`"`+w+`"`)) || bytes.Contains(line, []byte(`:`+w+`,`))
	})
}

// stamp is the time in a line.
func stamp(line string) string {
	_, after, _ := strings.Cut(line, `"At":"`)
	return after[:min(len(after), 30)]
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tendril/client"
	"tendril/tools/e2e/rig"
	"tendril/tools/soak/trial"
)

const (
	clientLanes  = 3 // clients of the store at a time
	sessionLanes = 2 // OpenCL programs at a time, on this machine
	farLanes     = 1 // the same as if from another, over TLS or plaintext, by a proxy that cuts the connections
)

// clients says what the store's clients do.
var clients = trial.World{Lanes: clientLanes, LiveBytes: 60 << 20, HeldBytes: 12 << 20,
	Sizes: []uint64{1, 64, 4096, 50_000, 700_000, 3 << 20, 9 << 20}}

// churn keeps clients coming.
type churn struct {
	n       *rig.Node
	seed    uint64
	pause   time.Duration // between two lives
	dir     string
	proxy   *rig.Proxy   // to the front door
	program string       // the OpenCL program, "" where there cannot be one
	missing error        // why
	rows    []*trial.Row // the lanes of the store's clients

	lives, kills, sessionLives, sessionKills, farLives, farKills, cuts, refused atomic.Int64
}

func newChurn(ctx context.Context, n *rig.Node, pause time.Duration, seed uint64) (*churn, error) {
	dir, err := os.MkdirTemp("", "tendril-soak-")
	if err != nil {
		return nil, err
	}
	c := &churn{n: n, seed: seed, pause: pause, dir: dir}
	for i := range clientLanes {
		c.rows = append(c.rows, trial.NewRow(clients, i, dir, seed))
	}
	address, err := n.Listening(ctx)
	if err == nil {
		c.proxy, err = rig.NewProxy(address)
	}
	if err == nil {
		err = n.Login(ctx, dir, c.proxy.Address())
	}
	if err != nil {
		c.close()
		return nil, err
	}
	if drivers, _ := filepath.Glob("/etc/OpenCL/vendors/*.icd"); len(drivers) == 0 {
		c.missing = errors.New("no OpenCL driver on this machine")
		return c, nil
	}
	program := filepath.Join(dir, "session")
	cc := exec.Command("cc", "-std=gnu11", "-O1", "-o", program,
		filepath.Join("tools", "e2e", "testdata", "session.c"), "-lOpenCL")
	if _, c.missing = rig.Output(cc); c.missing == nil {
		c.program = program
	}
	return c, nil
}

func (c *churn) close() {
	if c.proxy != nil {
		c.proxy.Close()
	}
	os.RemoveAll(c.dir)
}

func (c *churn) sessions() string {
	if c.program == "" {
		return "none: " + c.missing.Error()
	}
	return "run beside the store's clients"
}

func (c *churn) counts() string {
	return fmt.Sprintf("%d clients (%d killed), %d sessions (%d killed), %d from elsewhere (%d killed, %d cuts, %d of them before there was a session)",
		c.lives.Load(), c.kills.Load(), c.sessionLives.Load(), c.sessionKills.Load(), c.farLives.Load(),
		c.farKills.Load(), c.cuts.Load(), c.refused.Load())
}

// round lets clients come and go for so long, ends them all and deletes what they left.
func (c *churn) round(ctx context.Context, long time.Duration) error {
	whole := ctx // what comes after the lanes is no part of their time
	ctx, cancel := context.WithTimeout(whole, long)
	defer cancel()
	var lanes sync.WaitGroup
	var mu sync.Mutex
	var first error
	lane := func(life func(context.Context, *rand.Rand) error, i int) {
		rng := rand.New(rand.NewPCG(c.seed, uint64(i)^uint64(time.Now().UnixNano())))
		lanes.Go(func() {
			for ctx.Err() == nil {
				if err := life(ctx, rng); err != nil {
					mu.Lock()
					first = errors.Join(first, err)
					mu.Unlock()
					cancel()
				}
				select {
				case <-time.After(c.pause):
				case <-ctx.Done():
				}
			}
		})
	}
	for i, row := range c.rows {
		if err := row.Clear(); err != nil {
			return err
		}
		lane(func(ctx context.Context, rng *rand.Rand) error { return c.storeLife(ctx, rng, row) }, i)
	}
	if c.program != "" {
		for i := range sessionLanes {
			lane(c.sessionLife, clientLanes+i)
		}
		for i := range farLanes {
			lane(c.farLife, clientLanes+sessionLanes+i)
		}
		lane(c.cut, clientLanes+sessionLanes+farLanes)
	}
	lanes.Wait()
	if first != nil {
		return first
	}
	conn, err := client.Dial(whole, client.Options{Socket: c.n.Socket()})
	if err != nil {
		return err
	}
	defer conn.Close()
	return trial.Sweep(conn)
}

// storeLife runs a process of a lane of the store's clients, which is killed at a moment that nobody chose or told to
// end.
func (c *churn) storeLife(ctx context.Context, rng *rand.Rand, row *trial.Row) error {
	cmd, err := row.Next(c.n.Env())
	if err != nil {
		return err
	}
	return c.live(ctx, rng, cmd, "", &c.lives, &c.kills)
}

// sessionLife runs one OpenCL program.
func (c *churn) sessionLife(ctx context.Context, rng *rand.Rand) error {
	return c.live(ctx, rng, c.n.Command(context.Background(), "run", "--", c.program), words(rng), &c.sessionLives,
		&c.sessionKills)
}

// farLife runs one as another machine would.
func (c *churn) farLife(ctx context.Context, rng *rand.Rand) error {
	plain := fmt.Sprintf("--plaintext=%v", rng.IntN(2) == 0)
	cmd := c.n.Far(context.Background(), c.dir, "run", "--server", c.proxy.Address(), plain, "--", c.program)
	return c.live(ctx, rng, cmd, words(rng), &c.farLives, &c.farKills)
}

// cut ends the connections of the sessions from elsewhere, which go on all the same.
func (c *churn) cut(ctx context.Context, rng *rand.Rand) error {
	select {
	case <-time.After(time.Duration(500+rng.IntN(3000)) * time.Millisecond):
		c.proxy.CutAll()
		c.cuts.Add(1)
	case <-ctx.Done():
	}
	return nil
}

// words are what an OpenCL program is told to do.
func words(rng *rand.Rand) string {
	words := "open\nadd 1\nverify\nbuffer 9000000\nadd 1\nverify\n"
	for range rng.IntN(20) {
		words += "add 3\nverify\n"
	}
	return words
}

// lastWords are for a program that will be killed: it computes for ever, or its worker dies before it.
var lastWords = []string{"", "spin\n", "stray 1099511627776\n"}

// live starts cmd, says words to it, kills it or closes its standard input in the end, and wants no complaint from one
// that ended by itself.
func (c *churn) live(ctx context.Context, rng *rand.Rand, cmd *exec.Cmd, words string, lives,
	kills *atomic.Int64) error {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lives.Add(1)
	kill := rng.IntN(2) == 0
	if kill && words != "" {
		words += lastWords[rng.IntN(len(lastWords))]
	}
	_, _ = in.Write([]byte(words)) // one that is gone is met below
	end := time.After(time.Duration(rng.IntN(2500)) * time.Millisecond)
	select {
	case <-end:
	case <-ctx.Done():
	}
	if kill {
		kills.Add(1)
		cmd.Process.Kill()
		in.Close()
		_ = cmd.Wait() // it was killed
		return nil
	}
	in.Close()
	late := time.AfterFunc(rig.RestLimit, func() { cmd.Process.Kill() })
	defer late.Stop()
	err = cmd.Wait()
	if err == nil && !complaint.MatchString(out.String()) {
		return nil
	}
	if lives == &c.farLives && !strings.Contains(out.String(), "ready") {
		c.refused.Add(1) // cut before there was a session that could go on
		return nil
	}
	return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), errors.Join(err, errComplaint), out.String())
}

// complaint is what a program says that did not get what it should.
var complaint = regexp.MustCompile(`failed|bad|wrong|what\?|(add|read|buffer) -`)

var errComplaint = errors.New("a client complained or did not end")

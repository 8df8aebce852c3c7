// Command memory checks objects in the memory of GPUs on a machine that has one: a daemon of its own makes them, other
// processes import them, write a canary and read it, the keeper is killed, then the daemon. It prints what each step
// took, the least and the median of several tries, and exits with the number of checks that failed. With two GPUs it
// also copies between them, and reverses their order.
//
//	bin/gpu/memory -tendril bin/tendril
//
// It trusts the machine. No locks: each process has one goroutine that matters.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon/keeper"
	"tendril/forwarding/cuda"
	"tendril/store/object"
)

func main() {
	program := flag.String("tendril", "bin/tendril", "the program")
	driver := flag.String("driver", keeper.DefaultDriver, "the CUDA driver")
	largest := flag.Uint64("bytes", 1<<30, "size of the large object")
	peers := flag.Bool("peers", false, "only copies: of host memory, and between two GPUs")
	role := flag.String("role", "", "what a child does; for this program itself")
	flag.Parse()
	if *role != "" {
		if err := child(*driver, *role); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	c := &check{program: *program, driver: *driver, out: os.Stdout}
	run := c.run
	if *peers {
		run = c.runPeers
	}
	if err := run(*largest); err != nil {
		c.failed++
		fmt.Println("FAILED:", err)
	}
	c.close()
	fmt.Printf("%d checks failed\n", c.failed)
	os.Exit(c.failed)
}

// check is one run.
type check struct {
	program, driver string
	out             *os.File
	dir             string
	daemon          *exec.Cmd
	conn            *client.Conn
	failed          int
}

// must counts a check.
func (c *check) must(ok bool, format string, args ...any) {
	word := "ok"
	if !ok {
		word = "FAILED"
		c.failed++
	}
	fmt.Fprintf(c.out, "%-7s"+format+"\n", append([]any{word}, args...)...)
}

// timed runs f some times and prints the least and the median.
func (c *check) timed(what string, n int, f func() error) error {
	var took []time.Duration
	for range n {
		begin := time.Now()
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		took = append(took, time.Since(begin))
	}
	c.print(what, took)
	return nil
}

func (c *check) print(what string, took []time.Duration) {
	slices.Sort(took)
	fmt.Fprintf(c.out, "time   %-58s least %10.3f ms, median %10.3f ms, %d tries\n", what, ms(took[0]),
		ms(took[len(took)/2]), len(took))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// start starts the daemon, and connects.
func (c *check) start(args ...string) error { return c.startIn(nil, args...) }

// startIn starts it with more in its environment.
func (c *check) startIn(env []string, args ...string) (err error) {
	c.daemon = exec.Command(c.program, append([]string{"daemon", "--socket", filepath.Join(c.dir, "s"), "--state-dir",
		filepath.Join(c.dir, "state"), "--listen", "none", "--vendors", c.dir, "--cuda-driver", c.driver,
		"--capacity", "4GiB"}, args...)...)
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	c.daemon.Stdout, c.daemon.Stderr = log, log
	c.daemon.Env = append(os.Environ(), env...)
	if err := c.daemon.Start(); err != nil {
		return err
	}
	for range 300 { // Pause: until the daemon serves
		if c.conn, err = client.Dial(context.Background(), client.Options{Socket: filepath.Join(c.dir,
			"s")}); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

func (c *check) close() {
	if c.conn != nil {
		c.conn.Close()
	}
	if c.daemon != nil && c.daemon.Process != nil {
		_ = c.daemon.Process.Kill()
		_ = c.daemon.Wait()
	}
	if log, err := os.ReadFile(filepath.Join(c.dir, "log")); err == nil {
		fmt.Fprintf(c.out, "the daemon's log:\n%s", log)
	}
	os.RemoveAll(c.dir)
}

// begin starts the daemon, and lists the GPUs.
func (c *check) begin() (list []client.GPU, err error) {
	if c.dir, err = os.MkdirTemp("", "gpu-memory-"); err != nil {
		return nil, err
	}
	if err := c.start(); err != nil {
		return nil, err
	}
	begin := time.Now()
	if list, err = c.conn.GPUs(context.Background()); err != nil {
		return nil, fmt.Errorf("the GPUs: %w", err)
	}
	fmt.Fprintf(c.out, "time   %-58s %.3f ms\n", "the keeper's start, and the list of GPUs", ms(time.Since(begin)))
	for _, g := range list {
		fmt.Fprintf(c.out, "cuda:%d %s %s, %d MiB, shares %v\n", g.Index, g.UUID, g.Name, g.Bytes>>20, g.Shares)
	}
	if len(list) == 0 {
		return nil, errors.New("there is no GPU")
	}
	return list, nil
}

// runPeers is run's copies alone.
func (c *check) runPeers(largest uint64) error {
	list, err := c.begin()
	if err != nil {
		return err
	}
	gpu, what := list[0].UUID, strconv.FormatUint(largest>>20, 10)+" MiB"
	if err := errors.Join(c.bus(gpu, largest), c.copies(gpu, largest, what)); err != nil || len(list) < 2 {
		return err
	}
	return errors.Join(c.between(gpu, list[1].UUID, largest), c.between(gpu, list[1].UUID, 64<<20))
}

func (c *check) run(largest uint64) error {
	list, err := c.begin()
	if err != nil {
		return err
	}
	gpu := list[0].UUID
	one, err := c.conn.CreateDevice(context.Background(), gpu, 5<<20,
		client.CreateOptions{}) // the first one makes the context
	if err != nil {
		return err
	}
	one.Abort(context.Background())
	if err := c.figures(gpu, 1<<20, largest); err != nil {
		return err
	}
	if len(list) > 1 {
		if err := c.between(list[0].UUID, list[1].UUID, largest); err != nil {
			return err
		}
	}
	if err := c.lives(gpu, largest); err != nil {
		return err
	}
	return c.offers(list)
}

// ended ends the daemon.
func (c *check) ended() {
	c.conn.Close()
	_ = c.daemon.Process.Kill()
	_ = c.daemon.Wait()
}

// offers looks at which GPUs daemons offer that are told to: by UUID, and by the environment, in another order.
func (c *check) offers(list []client.GPU) error {
	last := list[len(list)-1]
	for _, x := range []struct {
		what string
		env  []string
		args []string
		want []client.GPU
	}{
		{"--devices with the last one's UUID", nil, []string{"--devices", last.UUID.String()}, []client.GPU{last}},
		{"--devices cpu", nil, []string{"--devices", "cpu"}, nil},
		{"CUDA_VISIBLE_DEVICES with the last one's UUID", []string{"CUDA_VISIBLE_DEVICES=" + nvidiaUUID(last.UUID)}, nil,
			[]client.GPU{last}},
		{"CUDA_VISIBLE_DEVICES in reverse order", []string{"CUDA_VISIBLE_DEVICES=" + reversed(len(list))}, nil,
			backward(list)},
	} {
		c.ended()
		if err := c.startIn(x.env, x.args...); err != nil {
			return err
		}
		got, err := c.conn.GPUs(context.Background())
		same := len(got) == len(x.want)
		for i := range got {
			same = same && got[i].UUID == x.want[i].UUID
		}
		c.must(err == nil && same, "%s: %d of %d GPUs are offered (%v)", x.what, len(got), len(list), err)
		for _, g := range list {
			offered := slices.ContainsFunc(x.want, func(w client.GPU) bool { return w.UUID == g.UUID })
			b, err := c.conn.CreateDevice(context.Background(), g.UUID, 1<<20, client.CreateOptions{})
			if err == nil {
				err = b.Abort(context.Background())
			}
			c.must(offered == (err == nil), "%s: an object on GPU %s: %v", x.what, g.UUID, err)
		}
	}
	return nil
}

// nvidiaUUID is a UUID as NVIDIA's tools write it.
func nvidiaUUID(d object.Device) string {
	s := d.String()
	return "GPU-" + s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// backward is a list from its end on.
func backward(list []client.GPU) []client.GPU {
	other := slices.Clone(list)
	slices.Reverse(other)
	return other
}

// reversed is the numbers below n, the greatest first.
func reversed(n int) string {
	var words []string
	for i := n - 1; i >= 0; i-- {
		words = append(words, strconv.Itoa(i))
	}
	return strings.Join(words, ",")
}

// between copies an object from one GPU to another, and back.
func (c *check) between(a, b object.Device, n uint64) error {
	host, err := c.conn.Create(context.Background(), n, client.CreateOptions{Own: true})
	if err != nil {
		return err
	}
	for i := range host.Bytes() {
		host.Bytes()[i] = byte(i * 11)
	}
	last, err := host.Seal(context.Background())
	if err != nil {
		return err
	}
	defer last.Release()
	from, where := last.ID(), "host memory to a GPU"
	for _, gpu := range []object.Device{a, b, a} {
		buf, err := c.conn.CreateDevice(context.Background(), gpu, n, client.CreateOptions{})
		if err != nil {
			return err
		}
		err = c.timed(fmt.Sprintf("from %s, %d MiB, at %.8s", where, n>>20, gpu), 11, func() error {
			return c.conn.CopyObject(context.Background(), buf.ID(), 0, from, "", 0, n)
		})
		if err != nil {
			return err
		}
		obj, err := buf.Seal(context.Background())
		if err != nil {
			return err
		}
		defer obj.Release()
		from, where = obj.ID(), "one GPU to another"
	}
	back, err := c.conn.Create(context.Background(), n, client.CreateOptions{Own: true})
	if err != nil {
		return err
	}
	defer back.Abort(context.Background())
	err = c.conn.CopyObject(context.Background(), back.ID(), 0, from, "", 0, n)
	c.must(err == nil && bytes.Equal(back.Bytes(), last.Bytes()), "%d MiB went to one GPU, the other and back (%v)",
		n>>20, err)
	return c.ways()
}

// ways prints how the keeper copied.
func (c *check) ways() error {
	raw, err := admin.Of(c.conn).Status(context.Background())
	if err != nil {
		return err
	}
	var status struct {
		Keeper keeper.Status `json:"keeper"`
	}
	if err := json.Unmarshal(raw, &status); err != nil {
		return err
	}
	for _, x := range status.Keeper.Copies {
		fmt.Fprintf(c.out, "way    %s: %d MiB in %d steps; %s\n", x.Way, x.Bytes>>20, x.Steps, x.Why)
	}
	return nil
}

// bus measures what the driver does by itself, in a process of its own.
func (c *check) bus(gpu object.Device, n uint64) error {
	h, err := c.child("bus")
	if err != nil {
		return err
	}
	defer h.end()
	answer, err := h.ask(fmt.Sprintf("bus %s %d", gpu, n))
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "time   the driver's own, %d MiB: a memfd pinned read-only there, pinned there and back | ordinary memory there and back, pinned there and back: %s ms\n",
		n>>20, answer)
	return nil
}

// figures times what an object costs.
func (c *check) figures(gpu object.Device, sizes ...uint64) error {
	for _, n := range sizes {
		what := strconv.FormatUint(n>>20, 10) + " MiB"
		for _, x := range []struct {
			what  string
			tries int
		}{{", the first time", 1}, {", again", 200}} {
			err := c.timed("create and abort "+what+" through the daemon"+x.what, x.tries, func() error {
				b, err := c.conn.CreateDevice(context.Background(), gpu, n, client.CreateOptions{})
				if err != nil {
					return err
				}
				return b.Abort(context.Background())
			})
			if err != nil {
				return err
			}
		}
		err := c.timed("for comparison: two questions that the daemon answers at once", 200, func() error {
			for range 2 {
				_, _ = c.conn.Stat(context.Background(), object.NewID()) // there is none: it is the time that counts
			}
			return nil
		})
		if err == nil {
			err = c.bus(gpu, n)
		}
		if err == nil {
			err = c.copies(gpu, n, what)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copies times the keeper's copies between host memory and the GPU.
func (c *check) copies(gpu object.Device, n uint64, what string) error {
	host, err := c.conn.Create(context.Background(), n, client.CreateOptions{Own: true})
	if err != nil {
		return err
	}
	for i := range host.Bytes() {
		host.Bytes()[i] = byte(i * 7)
	}
	from, err := host.Seal(context.Background())
	if err != nil {
		return err
	}
	defer from.Release()
	buf, err := c.conn.CreateDevice(context.Background(), gpu, n, client.CreateOptions{})
	if err != nil {
		return err
	}
	there := func() error { return c.conn.CopyObject(context.Background(), buf.ID(), 0, from.ID(), "", 0, n) }
	err = errors.Join(c.timed("host object to GPU by the keeper, the first time, "+what, 1, there),
		c.timed("host object to GPU by the keeper, the second time, "+what, 1, there),
		c.timed("host object to GPU by the keeper, again, "+what, 10, there))
	if err != nil {
		return err
	}
	obj, err := buf.Seal(context.Background())
	if err != nil {
		return err
	}
	defer obj.Release()
	back, err := c.conn.Create(context.Background(), n, client.CreateOptions{Own: true})
	if err != nil {
		return err
	}
	defer back.Abort(context.Background())
	home := func() error { return c.conn.CopyObject(context.Background(), back.ID(), 0, obj.ID(), "", 0, n) }
	err = errors.Join(c.timed("GPU to host object by the keeper, the first time, "+what, 1, home),
		c.timed("GPU to host object by the keeper, the second time, "+what, 1, home),
		c.timed("GPU to host object by the keeper, again, "+what, 10, home), c.ways())
	if err == nil {
		c.must(bytes.Equal(back.Bytes(), from.Bytes()), "%s went to the GPU and came back the same", what)
	}
	return err
}

// lives passes objects between processes while the keeper, then the daemon are killed.
func (c *check) lives(gpu object.Device, largest uint64) error {
	writer, err := c.child("writer")
	if err != nil {
		return err
	}
	defer writer.end()
	reader, err := c.child("reader")
	if err != nil {
		return err
	}
	defer reader.end()
	if _, err := writer.number("free " + gpu.String()); err != nil { // its context is there before we count
		return err
	}
	before, err := reader.number("free " + gpu.String())
	if err != nil {
		return err
	}
	for _, n := range []uint64{1 << 20, largest} {
		if err := c.pass(gpu, n, writer, reader); err != nil {
			return err
		}
	}
	after, err := reader.number("free " + gpu.String())
	c.must(err == nil && after >= before-min(before, 8<<20), "the GPU's free memory is as before: %d MiB, then %d (%v)",
		before>>20, after>>20, err)
	return c.ends(gpu, writer, reader)
}

// pass has one process write an object and another one read it, with the keeper killed in between.
func (c *check) pass(gpu object.Device, n uint64, writer, reader *helper) error {
	what, name := strconv.FormatUint(n>>20, 10)+" MiB", "canary-"+strconv.FormatUint(n, 10)
	buf, err := c.conn.CreateDevice(context.Background(), gpu, n, client.CreateOptions{Name: name, Class: object.Named})
	if err != nil {
		return err
	}
	obj, err := buf.Seal(context.Background())
	if err != nil {
		return err
	}
	obj.Release()
	_, err = writer.ask("write " + name + " canary-of-" + name)
	c.must(err == nil, "%s: another process imported it and wrote (%v)", what, err)
	pid, err := c.killKeeper()
	c.must(err == nil, "the keeper, process %d, was killed by SIGKILL (%v)", pid, err)
	got, err := reader.ask("read " + name + " " + strconv.Itoa(len("canary-of-"+name)))
	c.must(err == nil && got == "canary-of-"+name, "%s: a third process read %q (%v)", what, got, err)
	var gets, maps, all []time.Duration
	for range 20 {
		answer, err := reader.ask("time " + name)
		if err != nil {
			return err
		}
		var get, mapped int64 // ns
		if _, err := fmt.Sscan(answer, &get, &mapped); err != nil {
			return fmt.Errorf("%q: %w", answer, err)
		}
		gets, maps = append(gets, time.Duration(get)), append(maps, time.Duration(mapped))
		all = append(all, time.Duration(get+mapped))
	}
	c.print("get "+what+" from the daemon, import, map; both started", all)
	c.print("  of it the daemon's answer, with the descriptor", gets)
	c.print("  of it import and map", maps)
	stage, err := c.conn.Create(context.Background(), 64, client.CreateOptions{Own: true})
	if err != nil {
		return err
	}
	defer stage.Abort(context.Background())
	err = c.conn.CopyObject(context.Background(), stage.ID(), 0, object.ID{}, name, 0, 64)
	c.must(err == nil && bytes.HasPrefix(stage.Bytes(), []byte("canary-of-"+name)),
		"%s: the next keeper copies %.40q (%v)", what, stage.Bytes(), err)
	return c.conn.DeleteByName(context.Background(), name)
}

func (c *check) killKeeper() (pid int, err error) {
	status, err := admin.Of(c.conn).Status(context.Background())
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(status, []byte(`"keeper":{"pid":`))
	digits, _, _ := bytes.Cut(rest, []byte(","))
	if pid, err = strconv.Atoi(string(digits)); err != nil {
		return 0, fmt.Errorf("the status has no keeper: %w", err)
	}
	return pid, unix.Kill(pid, unix.SIGKILL)
}

// ends kills the daemon while a process has an object mapped.
func (c *check) ends(gpu object.Device, writer, reader *helper) error {
	buf, err := c.conn.CreateDevice(context.Background(), gpu, 1<<20, client.CreateOptions{Name: "last",
		Class: object.Named})
	if err != nil {
		return err
	}
	if _, err := buf.Seal(context.Background()); err != nil {
		return err
	}
	_, err = writer.ask("write last still-there")
	c.must(err == nil, "a process wrote (%v)", err)
	_, err = reader.ask("hold last")
	c.must(err == nil, "another one holds a mapping (%v)", err)
	next := *c
	err = next.start("--takeover")
	c.must(err == nil, "another daemon takes over (%v)", err)
	_ = c.daemon.Wait()
	c.conn.Close()
	c.daemon, c.conn = next.daemon, next.conn
	info, err := c.conn.StatByName(context.Background(), "last")
	c.must(err == nil && info.Kind == object.CUDA && info.Device == gpu, "it has the object, of kind %v (%v)", info.Kind, err)
	_ = c.daemon.Process.Kill()
	_ = c.daemon.Wait()
	got, err := reader.ask("look " + strconv.Itoa(len("still-there")))
	c.must(err == nil && got == "still-there", "the daemon was killed by SIGKILL, and the mapping holds %q (%v)", got, err)
	c.conn.Close()
	if err := c.start(); err != nil {
		return err
	}
	_, err = c.conn.StatByName(context.Background(), "last")
	c.must(errors.Is(err, object.ErrNotFound), "the next daemon does not have the object: %v", err)
	return nil
}

// helper is this program as a child: one line asks, one line answers.
type helper struct {
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
}

func (c *check) child(role string) (*helper, error) {
	cmd := exec.Command("/proc/self/exe", "-role", role, "-driver", c.driver)
	cmd.Env = append(os.Environ(), "TENDRIL_SOCKET="+filepath.Join(c.dir, "s"))
	cmd.Stderr = os.Stderr
	theirs, mine, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd.Stdin = theirs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		mine.Close()
		return nil, err
	}
	h := &helper{cmd, mine, bufio.NewReader(out)}
	_, err = h.ask("hello")
	return h, err
}

func (h *helper) end() {
	h.in.Close()
	_ = h.cmd.Wait()
}

func (h *helper) ask(line string) (string, error) {
	if _, err := fmt.Fprintln(h.in, line); err != nil {
		return "", err
	}
	answer, err := h.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the helper ended: %w", err)
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(answer), " ")
	if word != "ok" {
		return "", errors.New(rest)
	}
	return rest, nil
}

func (h *helper) number(line string) (uint64, error) {
	text, err := h.ask(line)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(text, 10, 64)
}

// child answers lines until its input ends.
func child(driver, role string) error {
	conn, err := client.Dial(context.Background(), client.Options{Program: role})
	if err != nil {
		return err
	}
	defer conn.Close()
	l, err := cuda.Open(driver)
	if err != nil {
		return err
	}
	w := &work{conn: conn, library: l, contexts: map[object.Device]*cuda.Context{}}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		answer, err := w.do(strings.Fields(in.Text()))
		if err != nil {
			fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", "; "))
			continue
		}
		fmt.Println("ok", answer)
	}
	for _, c := range w.contexts {
		err = errors.Join(err, c.Close())
	}
	return err
}

// work is a child's state.
type work struct {
	conn     *client.Conn
	library  *cuda.Library
	contexts map[object.Device]*cuda.Context
	held     *cuda.Mapping
}

func (w *work) do(words []string) (string, error) {
	switch {
	case len(words) == 1 && words[0] == "hello":
		return "", nil
	case len(words) == 2 && words[0] == "free":
		gpu, err := object.ParseDevice(words[1])
		if err != nil {
			return "", err
		}
		c, err := w.use(gpu)
		if err != nil {
			return "", err
		}
		n, err := c.FreeBytes()
		return strconv.FormatUint(n, 10), err
	case len(words) == 3 && words[0] == "bus":
		return w.bus(words[1], words[2])
	case len(words) == 3 && words[0] == "write":
		return "", w.with(words[1], func(v *cuda.Mapping) error { return v.Write(0, []byte(words[2])) })
	case len(words) == 3 && words[0] == "read":
		return w.read(words[1], words[2])
	case len(words) == 2 && words[0] == "time":
		return w.time(words[1])
	case len(words) == 2 && words[0] == "hold":
		v, _, err := w.open(words[1])
		w.held = v
		return "", err
	case len(words) == 2 && words[0] == "look" && w.held != nil:
		return look(w.held, words[1])
	}
	return "", fmt.Errorf("unknown words %q", words)
}

// bus times copies between memory of this process and a GPU: plain, then pinned, each the best of five; there and back,
// in ms.
func (w *work) bus(uuid, size string) (text string, err error) {
	gpu, err := object.ParseDevice(uuid)
	if err != nil {
		return "", err
	}
	n, err := strconv.ParseUint(size, 10, 64)
	if err != nil {
		return "", err
	}
	c, err := w.use(gpu)
	if err != nil {
		return "", err
	}
	granule, err := c.Granularity()
	if err != nil {
		return "", err
	}
	memory, err := c.Create((n + granule - 1) / granule * granule)
	if err != nil {
		return "", err
	}
	v, err := memory.Map()
	if err = errors.Join(err, memory.Release()); err != nil {
		return "", err
	}
	host, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return "", err
	}
	for i := 0; i < len(host); i += 4096 {
		host[i] = 1
	}
	var words []string
	if words, err = w.shared(c, v, n); err != nil {
		return "", err
	}
	for _, pinned := range []bool{false, true} {
		if pinned {
			if _, err := c.Pin(host, false); err != nil {
				return "", err
			}
		}
		there, back := func() error { return v.Write(0, host) }, func() error { return v.Read(host, 0) }
		for _, copied := range []func() error{there, back} {
			least, err := best(copied)
			if err != nil {
				return "", err
			}
			words = append(words, least)
		}
	}
	return strings.Join(words, " "), v.Unmap()
}

// best is the least of five times of f, in ms.
func best(f func() error) (string, error) {
	least := time.Hour
	for range 5 {
		began := time.Now()
		if err := f(); err != nil {
			return "", err
		}
		least = min(least, time.Since(began))
	}
	return fmt.Sprintf("%.3f", ms(least)), nil
}

// shared times copies of a memfd that is pinned: of a mapping that can only be read, there; of one that can be written,
// there and back.
func (w *work) shared(c *cuda.Context, v *cuda.Mapping, n uint64) (words []string, err error) {
	fd, err := unix.MemfdCreate("bus", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		return nil, err
	}
	for _, access := range []int{unix.PROT_READ, unix.PROT_READ | unix.PROT_WRITE} {
		host, err := unix.Mmap(fd, 0, int(n), access, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		pin, err := c.Pin(host, access == unix.PROT_READ)
		if err != nil {
			words = append(words, "("+err.Error()+")")
			continue
		}
		ways := []func() error{func() error { return v.Write(0, host) }}
		if access != unix.PROT_READ {
			ways = append(ways, func() error { return v.Read(host, 0) })
		}
		for _, f := range ways {
			least, err := best(f)
			if err != nil {
				return nil, err
			}
			words = append(words, least)
		}
		if err := errors.Join(pin.Unpin(), unix.Munmap(host)); err != nil {
			return nil, err
		}
	}
	return append(words, "|"), nil
}

func look(v *cuda.Mapping, bytes string) (string, error) {
	n, err := strconv.Atoi(bytes)
	if err != nil {
		return "", err
	}
	b := make([]byte, n)
	err = v.Read(b, 0)
	return string(b), err
}

func (w *work) read(name, bytes string) (text string, err error) {
	err = w.with(name, func(v *cuda.Mapping) error {
		text, err = look(v, bytes)
		return err
	})
	return text, err
}

// use gives a GPU's context, by its UUID.
func (w *work) use(gpu object.Device) (*cuda.Context, error) {
	if c := w.contexts[gpu]; c != nil {
		return c, nil
	}
	list, err := w.library.Devices()
	for _, d := range list {
		if d.UUID == gpu {
			c, err := w.library.Context(d)
			w.contexts[gpu] = c
			return c, err
		}
	}
	return nil, errors.Join(err, fmt.Errorf("no GPU %s in this process", gpu))
}

// time says how long the daemon's answer took, and the import and map after it, in ns.
func (w *work) time(name string) (string, error) {
	began := time.Now()
	obj, err := w.conn.GetDevice(context.Background(), object.ID{}, name, time.Minute)
	if err != nil {
		return "", err
	}
	got := time.Now()
	v, _, err := w.mapped(obj)
	if err != nil {
		return "", err
	}
	text := fmt.Sprint(got.Sub(began).Nanoseconds(), time.Since(got).Nanoseconds())
	err = v.Unmap()
	obj.Release()
	return text, err
}

// open maps an object.
func (w *work) open(name string) (*cuda.Mapping, *client.DeviceObject, error) {
	obj, err := w.conn.GetDevice(context.Background(), object.ID{}, name, time.Minute)
	if err != nil {
		return nil, nil, err
	}
	return w.mapped(obj)
}

func (w *work) mapped(obj *client.DeviceObject) (*cuda.Mapping, *client.DeviceObject, error) {
	c, err := w.use(obj.Memory.Device)
	if err != nil {
		return nil, nil, err
	}
	file := obj.Memory.TakeFile()
	defer file.Close()
	memory, err := c.Import(int(file.Fd()), obj.Memory.Bytes)
	if err != nil {
		return nil, nil, err
	}
	v, err := memory.Map()
	return v, obj, errors.Join(err, memory.Release())
}

func (w *work) with(name string, f func(*cuda.Mapping) error) error {
	v, obj, err := w.open(name)
	if err != nil {
		return err
	}
	err = errors.Join(f(v), v.Unmap())
	obj.Release()
	return err
}

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tendril/store/object"
)

func title(text string) { fmt.Printf("\n%s\n", text) }

// line reports one step and how long it took.
func line(what string, began time.Time, format string, args ...any) {
	took := fmt.Sprintf("%.1f ms", time.Since(began).Seconds()*1e3)
	fmt.Printf("  %-10s %11s  %s\n", what, took, fmt.Sprintf(format, args...))
}

// devices says in one line what the node has, and fails if a filter could not run anywhere.
func (d *demo) devices(ctx context.Context) (string, error) {
	out, err := d.tendril(ctx, "devices")
	if err != nil {
		return "", err
	}
	native, err := d.command(ctx, nil, "clinfo", "--list")
	if err != nil {
		return "", err
	}
	if !strings.Contains(native, "Device") {
		return "", errors.New("no OpenCL device on this machine: run make deps (it installs pocl-opencl-icd)\n" + out)
	}
	return object.Counted(strings.Count(native, "Device"), "device"), nil
}

func (d *demo) put(ctx context.Context) error {
	title("1  one process puts a photograph into the store")
	began := time.Now()
	d.name = filepath.Base(d.image)
	said, err := d.tendril(ctx, "put", d.image, "--name", d.name)
	if err != nil {
		return err
	}
	info, err := os.Stat(d.image)
	if err != nil {
		return err
	}
	id, _, _ := strings.Cut(said, " ")
	line("put", began, "%s, %d bytes, object %s", d.name, info.Size(), strings.TrimSpace(id))
	return nil
}

// photograph fetches it from the store, as any program's standard input.
func (d *demo) photograph(ctx context.Context) ([]byte, error) {
	photo, err := d.tendril(ctx, "get", d.name, "-o", "-")
	return []byte(photo), err
}

func (d *demo) native(ctx context.Context) error {
	title("2  a Go program that knows nothing of Tendril filters it: Gaussian blur, then Sobel")
	photo, err := d.photograph(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	said, err := d.command(ctx, photo, filepath.Join(d.bin, "demo-filter"), "-out", d.path("native.raw"))
	if err != nil {
		return err
	}
	line("native", began, "%s", strings.TrimSpace(said))
	if _, err := fmt.Sscanf(said, "%dx%d", &d.width, &d.height); err != nil {
		return fmt.Errorf("demo-filter said %q: %w", said, err)
	}
	raw, err := os.ReadFile(d.path("native.raw"))
	d.digest = fmt.Sprintf("%x", sha256.Sum256(raw))
	return err
}

func (d *demo) forwarded(ctx context.Context) error {
	photo, err := d.photograph(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	said, err := d.command(ctx, photo, filepath.Join(d.bin, "tendril"), "run", "--",
		filepath.Join(d.bin, "demo-filter"), "-out", d.path("forwarded.raw"))
	if err != nil {
		return err
	}
	line("forwarded", began, "%s (kernels compiled anew: the node's cache is empty; \"published\" is the next run)",
		strings.TrimSpace(said))
	began = time.Now()
	a, err := os.ReadFile(d.path("native.raw"))
	if err != nil {
		return err
	}
	b, err := os.ReadFile(d.path("forwarded.raw"))
	if err != nil {
		return err
	}
	if !bytes.Equal(a, b) {
		return errors.New("native and forwarded results differ")
	}
	line("compared", began, "the same %d bytes", len(a))
	return nil
}

func (d *demo) publish(ctx context.Context) error {
	title("3  its result is published without a copy, and a Python process maps it")
	photo, err := d.photograph(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := d.command(ctx, photo, filepath.Join(d.bin, "tendril"), "run", "--publish", "edges", "--",
		filepath.Join(d.bin, "demo-filter")); err != nil {
		return err
	}
	out, err := d.tendril(ctx, "stat", "edges", "--json")
	if err != nil {
		return err
	}
	var info struct {
		Size    uint64 `json:"size_bytes"`
		Segment uint64 `json:"segment"`
		Creator string `json:"creator"`
		State   string `json:"state"`
	}
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		return fmt.Errorf("tendril stat --json said %q: %w", out, err)
	}
	line("published", began, "edges: %d bytes, %s, the buffer's own memory (segment %d)", info.Size, info.State,
		info.Segment)
	return nil
}

func (d *demo) show(ctx context.Context) error {
	began := time.Now()
	png := filepath.Join(d.out, "edges.png")
	said, err := d.command(ctx, nil, python(), filepath.Join(d.source, "show.py"),
		d.socket(), "edges", strconv.Itoa(d.width), strconv.Itoa(d.height), d.digest, png)
	if err != nil {
		return err
	}
	line("python", began, "%s", strings.TrimSpace(said))
	return nil
}

// python prefers Debian's own: the one that make deps provides for.
func python() string {
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		return "/usr/bin/python3"
	}
	return "python3"
}

func (d *demo) clinfo(ctx context.Context) error {
	title("4  Debian's clinfo and clpeak, unmodified")
	began := time.Now()
	out, err := d.tendril(ctx, "run", "--", "clinfo", "--list")
	if err != nil {
		return err
	}
	if !strings.Contains(out, "Tendril") {
		return fmt.Errorf("clinfo does not see a Tendril platform:\n%s", out)
	}
	line("clinfo", began, "%s", strings.Join(strings.Fields(strings.ReplaceAll(out, "\n", " ")), " "))
	return nil
}

func (d *demo) clpeak(ctx context.Context) error {
	began := time.Now()
	out, err := d.tendril(ctx, "run", "--", "clpeak", "--transfer-bandwidth", "--kernel-latency")
	if err != nil {
		return err
	}
	line("clpeak", began, "kernel latency %s, blocking write %s, read %s GB/s",
		after(out, "latency"), after(out, "enqueueWriteBuffer "), after(out, "enqueueReadBuffer "))
	return nil
}

// after returns what follows "label … :" on the last line of text that has such a label.
func after(text, label string) string {
	found := "?"
	for l := range strings.Lines(text) {
		if name, value, ok := strings.Cut(l, ":"); ok && strings.Contains(name+" ", label) &&
			strings.TrimSpace(value) != "" {
			found = strings.TrimSpace(value)
		}
	}
	return found
}

func (d *demo) status(ctx context.Context) error {
	title("5  tendril status")
	out, err := d.tendril(ctx, "status")
	if err != nil {
		return err
	}
	for l := range strings.Lines(out) {
		fmt.Print("  ", l)
	}
	return nil
}

func (d *demo) farewell() {
	if d.keep {
		fmt.Printf("\nThe node stays: export TENDRIL_SOCKET=%s\nEnd it with: kill %d; rm -r %s\n", d.socket(),
			d.daemon.Process.Pid, d.dir)
		return
	}
	fmt.Println("\nDone; nothing is left running. (KEEP=1 keeps the node, IMAGE=my.jpg takes your picture.)")
}

func (d *demo) path(name string) string { return filepath.Join(d.dir, name) }

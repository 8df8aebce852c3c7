package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/daemon"
	"tendril/store/object"
)

const getExample = `  tendril get photo.jpg -o copy.jpg
  tendril get 0123456789abcdef0123456789abcdef | sha256sum
  tendril get result -o result.bin --wait 30s   # wait until it exists
  tendril get weights.bin --server gpubox --offset 1MiB --length 4096 -o part
  tendril get weights.bin --device cuda:0       # into the memory of a GPU of this node, from wherever it is`

func (c *cli) getVerb() *cobra.Command {
	var out, offset, length string
	var wait time.Duration
	var to onto
	cmd := &cobra.Command{
		Use:   "get NAME|ID",
		Short: "Write an object's bytes to a file or to standard output",
		Long: "Write an object's bytes to a file or to standard output. A name is looked up among this node's objects\n" +
			"first, then among published ones. The beginning of an ID is enough; write id: before it if it is also a name.\n" +
			"With --server the bytes come over the network.\n\n" +
			"With --device the object is copied into the memory of a device of this node instead, from host memory, from\n" +
			"another device, or from another node that has published it. The copy is an object of its own. Its name is the\n" +
			"same, unless that is the name of an object of this node: then give it another one with --name, or with\n" +
			"--replace have it take that name.",
		Example: getExample,
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			part, err := parsePart(offset, length)
			if err != nil {
				return err
			}
			if to.device != "" {
				err = c.getOnto(cmd.Context(), args[0], to, wait)
			} else {
				err = c.get(cmd.Context(), args[0], out, part, wait)
			}
			switch {
			case errors.Is(err, object.ErrTimeout) && wait > 0:
				err = hinted{err, "See what is there with: tendril ls --all"}
			case errors.Is(err, object.ErrNotFound) && wait == 0:
				err = hinted{err, "See what is there with: tendril ls    To wait for it: --wait 10s"}
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the file to write; - is standard output (the default)")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for the object to be sealed or published")
	cmd.Flags().StringVar(&offset, "offset", "", "first byte to write, such as 4096 or 1MiB")
	cmd.Flags().StringVar(&length, "length", "", "most bytes to write (default: up to the object's end)")
	to.flags(cmd)
	for _, other := range []string{"output", "offset", "length"} {
		cmd.MarkFlagsMutuallyExclusive("device", other)
	}
	return cmd
}

// part says which bytes of an object are wanted: length bytes from off on, or fewer where it ends.
type part struct{ off, length uint64 }

func parsePart(offset, length string) (p part, err error) {
	p.length = math.MaxUint64
	for _, f := range []struct {
		flag, text string
		into       *uint64
	}{{"offset", offset, &p.off}, {"length", length, &p.length}} {
		if f.text == "" {
			continue
		}
		if *f.into, err = daemon.ParseBytes(f.text); err != nil {
			return p, usagef("--%s: %w", f.flag, err)
		}
	}
	return p, nil
}

// of gives the bytes of an object of size bytes.
func (p part) of(size uint64) (off, n uint64, err error) {
	if p.off > size {
		return 0, 0, fmt.Errorf("%w: --offset %d is beyond the object's end at %d", object.ErrInvalid, p.off, size)
	}
	return p.off, min(p.length, size-p.off), nil
}

// source is an object whose bytes can be had, over the network or not.
type source struct {
	size  uint64
	copy  func(w io.Writer, off, n uint64) error
	close func()
}

func (c *cli) get(ctx context.Context, what, out string, part part, wait time.Duration) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	open := openHere
	if conn.Remote() {
		open = openThere
	}
	id, name, err := idOrName(ctx, conn, what)
	if err != nil {
		return fmt.Errorf("get %s: %w", what, err)
	}
	if name == "" && !strings.EqualFold(what, id.String()) { // 32 digits alone may be a name, too
		name = idMark + id.String()
	} else {
		name = what
	}
	obj, err := fetch(name, wait, func(id object.ID, name string, wait time.Duration) (source, error) {
		return open(ctx, conn, id, name, wait)
	})
	if err != nil {
		return fmt.Errorf("get %s: %w", what, err)
	}
	defer obj.close()
	if out == "" && c.term.isOut {
		return usagef("refusing to write binary data to a terminal: use -o FILE, pipe the output, or force it with -o -")
	}
	off, n, err := part.of(obj.size)
	if err != nil {
		return fmt.Errorf("get %s: %w", what, err)
	}
	write := func(w io.Writer) error {
		p := c.newProgress("get", n)
		defer p.end()
		return obj.copy(bounded{ctx, io.MultiWriter(w, p)}, off, n)
	}
	if out == "" || out == "-" {
		return write(c.term.out)
	}
	return writeFile(out, write)
}

// fetch opens an object by ID or name, as lookup does.
func fetch(what string, wait time.Duration,
	open func(id object.ID, name string, wait time.Duration) (source, error)) (source, error) {
	digits, marked := strings.CutPrefix(what, idMark)
	id, err := object.ParseID(digits)
	if err != nil {
		return open(object.ID{}, what, wait)
	}
	obj, err := open(id, "", wait)
	if errors.Is(err, object.ErrNotFound) && !marked {
		if named, second := open(object.ID{}, what, 0); second == nil {
			return named, nil
		}
	}
	return obj, err
}

// openHere opens an object in shared memory; by name where id is zero. The caller closes it.
func openHere(ctx context.Context, conn *client.Conn, id object.ID, name string, wait time.Duration) (source, error) {
	get := func() (*client.Object, error) { return conn.Get(ctx, id, wait) }
	if id.IsZero() {
		get = func() (*client.Object, error) { return conn.GetByName(ctx, name, wait) }
	}
	obj, err := get()
	if errors.Is(err, object.ErrUnsupported) {
		gpu, second := openOnGPU(ctx, conn, id, name, wait)
		if !errors.Is(second, object.ErrUnsupported) && !errors.Is(second, object.ErrNotFound) {
			return gpu, second
		}
	}
	if err != nil {
		return source{}, err
	}
	return source{obj.Size(), func(w io.Writer, off, n uint64) error { return copySteps(w, obj.Bytes()[off:][:n]) },
		obj.Release}, nil
}

// openThere is openHere for a daemon that shared memory does not reach.
func openThere(ctx context.Context, conn *client.Conn, id object.ID, name string, wait time.Duration) (source, error) {
	obj, err := conn.Open(ctx, id, name, wait)
	if err != nil {
		return source{}, err
	}
	return source{obj.Size(), func(w io.Writer, off, n uint64) error { return obj.CopyRange(ctx, w, off, n) },
		obj.Close}, nil
}

func copySteps(w io.Writer, b []byte) error {
	for len(b) > 0 {
		n, err := w.Write(b[:min(len(b), progressStep)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// writeFile replaces a file as a whole: a reader sees the old one or the new one, and a failure leaves the old one.
// What is not an ordinary file (a device, a pipe) is written to as it is.
func writeFile(path string, write func(io.Writer) error) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errnoOf(err)) // not of a name that nobody has written
	}
	defer os.Remove(f.Name()) // gone already when the rename succeeded
	if err := errors.Join(write(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/store/object"
)

const getExample = `  tendril get photo.jpg -o copy.jpg
  tendril get 0123456789abcdef0123456789abcdef | sha256sum
  tendril get result -o result.bin --wait 30s   # until it is there`

func (c *cli) getVerb() *cobra.Command {
	var out string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:     "get NAME|ID",
		Short:   "Write an object's bytes to a file or to standard output",
		Example: getExample,
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" && c.term.isOut {
				return usagef("objects are bytes that a terminal may not bear: name a file (-o FILE), pipe it on, or insist (-o -)")
			}
			return c.get(cmd.Context(), args[0], out, wait)
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the file to write; - is standard output (the default)")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait so long for the object to be there and sealed")
	return cmd
}

func (c *cli) get(ctx context.Context, what, out string, wait time.Duration) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	obj, err := fetch(ctx, conn, what, wait)
	if err != nil {
		return fmt.Errorf("get %s: %w", what, err)
	}
	defer obj.Release()
	if out == "" || out == "-" {
		return c.copyOut(c.term.out, obj.Bytes())
	}
	return c.writeFile(out, obj.Bytes())
}

// fetch opens an object by ID or name, as lookup does.
func fetch(ctx context.Context, conn *client.Conn, what string, wait time.Duration) (*client.Object, error) {
	id, err := object.ParseID(what)
	if err != nil {
		return conn.GetByName(ctx, what, wait)
	}
	obj, err := conn.Get(ctx, id, wait)
	if errors.Is(err, object.ErrNotFound) {
		if named, second := conn.GetByName(ctx, what, 0); second == nil {
			return named, nil
		}
	}
	return obj, err
}

func (c *cli) copyOut(w io.Writer, b []byte) error {
	p := c.newProgress("get", uint64(len(b)))
	defer p.end()
	for len(b) > 0 {
		n, err := w.Write(b[:min(len(b), progressStep)])
		if err != nil {
			return err
		}
		p.add(n)
		b = b[n:]
	}
	return nil
}

// writeFile replaces a file as a whole: a reader sees the old one or the new one, and a failure leaves the old one. What is not an
// ordinary file (a device, a pipe) is written to as it is.
func (c *cli) writeFile(path string, b []byte) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(c.copyOut(f, b), f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when the rename succeeded
	if err := errors.Join(c.copyOut(f, b), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

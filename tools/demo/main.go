// Command demo shows the main job on a node of its own: a photograph goes into
// the store, an unmodified OpenCL program filters it on a forwarded device, and
// another process maps the result without a copy.
//
// Everything lies in a temporary directory and ends with the demonstration,
// unless it is told to keep the node. It trusts the binaries it is given.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	o := options{}
	var keep string
	flag.StringVar(&o.bin, "bin", "bin", "directory of tendril, libtendril_opencl.so and demo-filter")
	flag.StringVar(&o.source, "source", "tools/demo", "directory of show.py and photo/")
	flag.StringVar(&o.python, "python", "client/python", "directory of the Python client")
	flag.StringVar(&o.image, "image", "", "your own JPEG or PNG instead of the photograph that comes with it")
	flag.StringVar(&o.out, "out", "demo-out", "directory for the PNG")
	flag.StringVar(&keep, "keep", "", "not empty and not 0: leave the node running")
	flag.Parse()
	o.keep = keep != "" && keep != "0"
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo failed:", err)
		os.Exit(1)
	}
}

type options struct {
	bin, source, python, image, out string
	keep                            bool
}

func run(ctx context.Context, o options) error {
	if err := o.complete(); err != nil {
		return err
	}
	d := &demo{options: o}
	defer d.close()
	for _, step := range []func(context.Context) error{
		d.start, d.put, d.native, d.forwarded, d.publish, d.show, d.clinfo, d.clpeak, d.status, d.login,
		d.remote, d.inspect,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	d.farewell()
	return nil
}

// complete fills in defaults, makes paths absolute and names everything that is missing at once.
func (o *options) complete() error {
	if o.image == "" {
		o.image = filepath.Join(o.source, "photo", "raccoon.jpg")
	}
	var missing []string
	for _, p := range []*string{&o.bin, &o.source, &o.python, &o.image, &o.out} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	for _, file := range []string{
		o.image, filepath.Join(o.bin, "tendril"), filepath.Join(o.bin, "libtendril_opencl.so"),
		filepath.Join(o.bin, "demo-filter"), filepath.Join(o.source, "show.py"),
	} {
		if _, err := os.Stat(file); err != nil {
			missing = append(missing, err.Error())
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s\n(binaries come from: make build)", strings.Join(missing, "\n"))
	}
	return os.MkdirAll(o.out, 0o755)
}

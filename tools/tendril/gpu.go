package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/store/object"
)

// Objects in the memory of GPUs: this program has no CUDA, so the daemon's keeper copies.

// onGPU makes a store that puts what it gets into the memory of a GPU, by way of an object in host memory.
func onGPU(gpu object.Device) func(context.Context, *client.Conn, content, client.CreateOptions) (object.ID, func(),
	error) {
	return func(ctx context.Context, conn *client.Conn, what content, opts client.CreateOptions) (id object.ID,
		release func(), err error) {
		host, releaseHost, err := storeHere(ctx, conn, what, client.CreateOptions{Own: true})
		if err != nil {
			return id, nil, err
		}
		defer releaseHost()
		opts.Own = false
		buf, err := conn.CreateDevice(ctx, gpu, what.size, opts)
		if err != nil {
			return id, nil, err
		}
		if err := conn.CopyObject(ctx, buf.ID(), 0, host, "", 0, what.size); err != nil {
			return id, nil, errors.Join(err, buf.Abort(ctx))
		}
		var obj *client.DeviceObject
		if err = beyondUndo(ctx); err == nil {
			obj, err = buf.Seal(context.WithoutCancel(ctx)) // as storeHere
		}
		if err != nil {
			return id, nil, errors.Join(err, buf.Abort(ctx))
		}
		return obj.ID(), obj.Release, nil
	}
}

// onto says which device get copies an object to, and what the copy is called.
type onto struct {
	device, name string
	replace      bool
}

func (o *onto) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.device, "device", "",
		"copy it into the memory of a `DEVICE` of this node: its UUID, cuda:N for GPU N, or opencl:N for device N of tendril devices")
	cmd.Flags().StringVar(&o.name, "name", "", "with --device: the copy's name (default: the object's)")
	cmd.Flags().BoolVar(&o.replace, "replace", false,
		"with --device: replace the object that has the name; it is deleted once nobody uses it")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case o.device == "" && (o.name != "" || o.replace):
			return inLine(cmd, usagef("--name and --replace need --device"))
		case o.device == "" && cmd.Flags().Changed("device"):
			return inLine(cmd, usagef(`--device "": want a device, such as cuda:0`))
		}
		return nil
	}
}

// getOnto copies an object into the memory of a device. One that is there already stays as it is, or comes back.
func (c *cli) getOnto(ctx context.Context, what string, to onto, wait time.Duration) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if conn.Remote() {
		return usagef("--device works only with this machine's devices: copy it there, on that machine")
	}
	gpu, err := conn.FindGPU(ctx, to.device)
	if err != nil {
		return deviceFault(to.device, err)
	}
	id, name, err := idOrName(ctx, conn, what)
	if err != nil {
		return fmt.Errorf("get %s: %w", what, err)
	}
	from, err := lookup(ctx, conn, what)
	switch {
	case err == nil:
		id, name = from.ID, ""
	case !errors.Is(err, object.ErrNotFound) || wait == 0:
		return fmt.Errorf("get %s: %w", what, err)
	default:
		from.ID, from.Name = id, name // it is waited for
	}
	var obj *client.DeviceObject
	if from.Device == gpu && (to.name == "" || to.name == from.Name) {
		obj, err = conn.GetDevice(ctx, id, "", wait)
	} else {
		obj, err = c.copyOnto(ctx, conn, from, name, to, wait, gpu)
	}
	if err != nil {
		return replaceable(fmt.Errorf("get %s: %w", what, absent(to.device, err)))
	}
	defer obj.Release()
	info, err := conn.Stat(context.WithoutCancel(ctx), obj.ID())
	if err != nil {
		return err
	}
	fmt.Fprintf(c.term.out, "%s  %s  %s\n", info.ID, size(info.SizeBytes), plain(info.Name))
	return nil
}

// copyOnto makes the copy, of an object that is described, or is waited for under a name.
func (c *cli) copyOnto(ctx context.Context, conn *client.Conn, from object.Info, name string, to onto,
	wait time.Duration, gpu object.Device) (*client.DeviceObject, error) {
	if to.name == "" {
		if to.name = cmp.Or(from.Name, from.Published); to.name == "" {
			return nil, usagef("the object has no name: give the copy one with --name")
		}
	}
	opts := client.CreateOptions{Name: to.name, Class: object.Named}
	if to.replace { // the name changes hands when the new object is whole, not before
		opts.Name, opts.Class = "", object.Ephemeral
	} else if here, err := conn.StatByName(ctx, to.name); err == nil && here.Name == to.name && len(here.Nodes) == 0 {
		return nil, fmt.Errorf("%w: an object is named %q", object.ErrExists, to.name) // before much is copied for nothing
	}
	obj, err := conn.CopyToDevice(ctx, from.ID, name, wait, gpu, opts)
	if err != nil || !to.replace {
		return obj, err
	}
	if err = conn.Bind(ctx, obj.ID(), to.name, true); err != nil {
		obj.Release() // nobody would find it
		return nil, err
	}
	return obj, nil
}

// stageBytes is how much of an object in the memory of a GPU passes through host memory at a time.
const stageBytes = 64 << 20

// openOnGPU opens an object in the memory of a GPU; by name where id is zero. The caller closes it.
func openOnGPU(ctx context.Context, conn *client.Conn, id object.ID, name string, wait time.Duration) (source, error) {
	obj, err := conn.GetDevice(ctx, id, name, wait)
	if err != nil {
		return source{}, err
	}
	return source{obj.Size(), func(w io.Writer, off, n uint64) error {
		return copyStaged(ctx, conn, w, obj.ID(), off,
			n)
	},
		obj.Release}, nil
}

func copyStaged(ctx context.Context, conn *client.Conn, w io.Writer, id object.ID, off, n uint64) (err error) {
	if n == 0 {
		return nil
	}
	stage, err := conn.Create(ctx, min(n, stageBytes), client.CreateOptions{Own: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stage.Abort(ctx)) }()
	for n > 0 {
		step := min(n, stageBytes)
		if err := conn.CopyObject(ctx, stage.ID(), 0, id, "", off, step); err != nil {
			return err
		}
		if err := copySteps(w, stage.Bytes()[:step]); err != nil {
			return err
		}
		off, n = off+step, n-step
	}
	return nil
}

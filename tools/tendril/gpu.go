package main

import (
	"context"
	"errors"
	"io"
	"time"

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
		if err = ctx.Err(); err == nil {
			obj, err = buf.Seal(context.WithoutCancel(ctx)) // as storeHere
		}
		if err != nil {
			return id, nil, errors.Join(err, buf.Abort(ctx))
		}
		return obj.ID(), obj.Release, nil
	}
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

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/store/object"
)

const putExample = `  tendril put photo.jpg                     # under the name photo.jpg
  tendril put photo.jpg --name today --replace
  tendril put model.bin --persist --label kind=weights
  tendril put frame.raw --ttl 10m
  tar c src | tendril put - --name src.tar  # a stream, of any length
  tendril put weights.bin --publish         # for the whole cluster
  tendril put weights.bin --publish --replicas 3
  tendril put tensor.bin --device cuda:0    # into the memory of a GPU
  tendril put tensor.bin --device opencl:0  # of an OpenCL device that CUDA does not show
  tendril put data.bin --json`

func (c *cli) putVerb() *cobra.Command {
	var name, device string
	var replace, publish bool
	var replicas uint16
	var opts client.CreateOptions
	cmd := &cobra.Command{
		Use:     "put FILE|-",
		Short:   "Put a file or a stream into the store, under a name",
		Long:    "Put a file, or standard input (-), into the store. The object gets a name and stays until `tendril rm`.",
		Example: putExample,
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" && cmd.Flags().Changed("name") {
				return usagef(`--name "": want a name`)
			}
			if name == "" {
				if args[0] == "-" {
					return usagef("standard input needs a name: --name N")
				}
				name = filepath.Base(args[0])
			}
			if replicas != 0 && !publish {
				return usagef("--replicas needs --publish")
			}
			if err := checkReplicas(cmd, replicas); err != nil {
				return err
			}
			return c.put(cmd.Context(), args[0], name, device, replace, publish, replicas, opts)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "the object's name (default: the file's, without its directory)")
	cmd.Flags().BoolVar(&replace, "replace", false,
		"replace the object that has the name; it is deleted once nobody uses it")
	cmd.Flags().BoolVar(&publish, "publish", false, "publish it: list it under its name for the whole cluster")
	cmd.Flags().Uint16Var(&replicas, "replicas", 0, "with --publish: keep it on `N` nodes; wait until they have it")
	var persist bool
	cmd.Flags().BoolVar(&persist, "persist", false, "also keep it on disk, so that it survives a restart")
	cmd.Flags().DurationVar(&opts.TTL, "ttl", 0, "how long the object lives (default: until tendril rm)")
	cmd.Flags().StringToStringVar(&opts.Labels, "label", nil, "`KEY=VALUE`, for ls --label; may be repeated")
	cmd.Flags().BoolVar(&opts.Strict, "strict", false,
		"seal it strictly: no process keeps or gets a writable mapping of it")
	cmd.Flags().BoolVar(&opts.Checksum, "checksum", false,
		"compute checksums now, and compare them at restores and scrubs")
	cmd.Flags().StringVar(&device, "device", "",
		"put it into the memory of a `DEVICE` of this node: its UUID, cuda:N for GPU N, or opencl:N for device N of tendril devices")
	cmd.MarkFlagsMutuallyExclusive("persist", "ttl")
	for _, other := range []string{"persist", "strict", "checksum"} {
		cmd.MarkFlagsMutuallyExclusive("device", other)
	}
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case cmd.Flags().Changed("ttl") && opts.TTL <= 0:
			return inLine(cmd, usagef("--ttl %v: want more than 0; without --ttl an object stays until tendril rm",
				opts.TTL))
		case persist:
			opts.Class = object.Persisted
		case opts.TTL != 0:
			opts.Class = object.TTL
		}
		return nil
	}
	return c.jsonFlag(cmd)
}

func (c *cli) put(ctx context.Context, file, name, device string, replace, publish bool, replicas uint16,
	opts client.CreateOptions) error {
	in, err := openInput(file, c.term.in)
	if err != nil {
		return err
	}
	defer in.Close()
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if !replace { // before a long stream is read for nothing
		if _, err := conn.StatByName(ctx, name); err == nil {
			return replaceable(fmt.Errorf("%w: an object is named %q", object.ErrExists, name))
		}
	}
	id, err := c.send(ctx, conn, in, name, device, replace, opts)
	if err != nil {
		return replaceable(fmt.Errorf("put %s: %w", file, err))
	}
	if publish {
		if _, err := conn.Publish(ctx, id, name, replace); err != nil {
			return halfway{fmt.Errorf("%s is in the store as %q, but it could not be published: %w", file, name, err)}
		}
		if err := c.publishedOn(ctx, conn, id, name, replicas); err != nil {
			return err
		}
	}
	info, err := conn.Stat(context.WithoutCancel(ctx), id)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(info)
	}
	fmt.Fprintf(c.term.out, "%s  %s  %s\n", info.ID, size(info.SizeBytes), plain(info.Name))
	return nil
}

// replaceable says of a name that is taken what put and mv have for it.
func replaceable(err error) error {
	if errors.Is(err, object.ErrExists) {
		return hinted{err, "Choose another name, or replace the old object with --replace."}
	}
	return err
}

// openInput opens what put reads; the caller closes it.
func openInput(file string, stdin *os.File) (*os.File, error) {
	if file == "-" {
		return stdin, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		f.Close()
		return nil, usagef("%s is a directory: put its files one by one, or as an archive (tar c %s | tendril put - --name N)", file, file)
	}
	return f, nil
}

// content is what put stores: bytes of a known number, read straight into shared memory or sent.
type content struct {
	size uint64
	fill func(memory []byte) error
	send func(w io.Writer) error
}

// send makes the object. A file's size is known; a stream is gathered first, because an object's size is fixed when it
// is created.
func (c *cli) send(ctx context.Context, conn *client.Conn, in *os.File, name, device string, replace bool,
	opts client.CreateOptions) (object.ID, error) {
	what, err := c.contentOf(ctx, in, conn.Daemon().CapacityBytes)
	if err != nil {
		return object.ID{}, err
	}
	opts.Own = true // it may stay long: what is deleted beside it is given back
	switch {
	case !replace && opts.Class == object.Ephemeral:
		opts.Name, opts.Class = name, object.Named
	case !replace:
		opts.Name = name
	} // else the name changes hands when the new object is whole, not before
	store := storeHere
	if conn.Remote() {
		if opts.Strict {
			return object.ID{}, usagef("--strict works only with this machine's store")
		}
		if device != "" {
			return object.ID{}, usagef("--device works only with this machine's store: put it there, on that machine")
		}
		store = storeThere
	}
	if device != "" {
		gpu, err := conn.FindGPU(ctx, device)
		if err != nil {
			return object.ID{}, deviceFault(device, err)
		}
		store = onGPU(gpu)
	}
	id, release, err := store(ctx, conn, what, opts)
	if device != "" {
		err = absent(device, err)
	}
	if err != nil {
		return id, err
	}
	defer release()
	if !replace {
		return id, nil
	}
	late := context.WithoutCancel(ctx) // who is interrupted has put it, as without replace
	if err = conn.Bind(late, id, name, true); err != nil {
		if info, why := conn.Stat(late, id); why == nil && info.Name != name { // nobody would find it
			err = errors.Join(err, conn.Delete(late, id))
		}
	}
	return id, err
}

// deviceFault is for what FindGPU says of a device: that this node has none of that name, or that it is no name.
func deviceFault(device string, err error) error {
	switch {
	case errors.Is(err, object.ErrNoDevice):
		return noDeviceError{device, err}
	case errors.Is(err, object.ErrInvalid):
		return hinted{err, "List devices with: tendril devices"}
	}
	return absent(device, err)
}

// absent is for what the making of an object on a device says: ErrNoDevice is that the driver failed.
func absent(device string, err error) error {
	if errors.Is(err, object.ErrUnsupported) {
		return noDeviceError{device, err}
	}
	return err
}

// contentOf finds out how much there is to store. limit is what the store holds, in bytes.
func (c *cli) contentOf(ctx context.Context, in *os.File, limit uint64) (content, error) {
	info, err := in.Stat()
	if err != nil {
		return content{}, err
	}
	if info.Mode().IsRegular() {
		at, err := in.Seek(0, io.SeekCurrent)
		if err != nil {
			return content{}, err
		}
		if left := info.Size() - at; left > 0 { // files of /proc say 0 and have more
			return content{uint64(left), func(b []byte) error { return c.readFull(patient{ctx, in}, b) },
				func(w io.Writer) error { return c.sendFull(w, patient{ctx, in}, left) }}, nil
		}
	}
	parts, total, err := gather(patient{ctx, in}, limit)
	if err != nil {
		return content{}, err
	}
	return content{total, func(b []byte) error { spread(b, parts); return nil },
		func(w io.Writer) error { return c.sendParts(w, parts, total) }}, nil
}

// storeHere makes an object in shared memory. The caller calls release.
func storeHere(ctx context.Context, conn *client.Conn, what content, opts client.CreateOptions) (id object.ID,
	release func(), err error) {
	buf, err := conn.Create(ctx, what.size, opts)
	if err != nil {
		return id, nil, err
	}
	if err := what.fill(buf.Bytes()); err != nil {
		return id, nil, errors.Join(err, buf.Abort(ctx))
	}
	var obj *client.Object
	if err = beyondUndo(ctx); err == nil {
		obj, err = buf.Seal(context.WithoutCancel(ctx)) // who is interrupted from here on has put it
	}
	if err != nil {
		return id, nil, errors.Join(err, buf.Abort(ctx))
	}
	return obj.ID(), obj.Release, nil
}

// storeThere is storeHere for a daemon that shared memory does not reach.
func storeThere(ctx context.Context, conn *client.Conn, what content, opts client.CreateOptions) (id object.ID,
	release func(), err error) {
	up, err := conn.NewUpload(ctx, what.size, opts)
	if err != nil {
		return id, nil, err
	}
	err = what.send(up)
	if err == nil {
		err = beyondUndo(ctx)
	}
	if err == nil {
		err = up.Seal(context.WithoutCancel(ctx)) // as storeHere
	}
	if err != nil {
		_ = up.Abort(ctx) // the first error is the one to tell; the connection's end does the same
		return id, nil, err
	}
	return up.ID(), up.Release, nil
}

var errShorter = errors.New("the file was truncated while it was read")

// readFull reads exactly len(b) bytes and shows how far it is.
func (c *cli) readFull(in io.Reader, b []byte) error {
	p := c.newProgress("put", uint64(len(b)))
	defer p.end()
	for done := 0; done < len(b); {
		n, err := in.Read(b[done:min(len(b), done+progressStep)])
		done += n
		p.add(n)
		if err == io.EOF && done < len(b) {
			return fmt.Errorf("%w: %d of %d bytes", errShorter, done, len(b))
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
	return nil
}

// sendFull is readFull into a writer.
func (c *cli) sendFull(w io.Writer, in io.Reader, n int64) error {
	p := c.newProgress("put", uint64(n))
	defer p.end()
	done, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(w, p)}, io.LimitReader(in, n),
		make([]byte, progressStep))
	if err == nil && done < n {
		err = fmt.Errorf("%w: %d of %d bytes", errShorter, done, n)
	}
	return err
}

// sendParts writes what was gathered and lets each part go as soon as it is written.
func (c *cli) sendParts(w io.Writer, parts [][]byte, total uint64) error {
	p := c.newProgress("put", total)
	defer p.end()
	for i, part := range parts {
		if _, err := w.Write(part); err != nil {
			return err
		}
		p.add(len(part))
		parts[i] = nil
	}
	return nil
}

// partBytes is how much of a stream is read at a time.
const partBytes = 4 << 20

// gather reads a stream to its end, but no more than limit bytes, which the store could not take.
func gather(in io.Reader, limit uint64) (parts [][]byte, total uint64, err error) {
	for {
		part := make([]byte, partBytes)
		n, err := io.ReadFull(in, part)
		if n > 0 {
			parts = append(parts, part[:n])
			total += uint64(n)
		}
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF:
			return parts, total, nil
		case err != nil:
			return nil, 0, err
		case total > limit:
			return nil, 0, fmt.Errorf("%w: the input is larger than the store (%d bytes)", object.ErrFull, limit)
		}
	}
}

// spread copies parts into b and lets each go as soon as it is copied.
func spread(b []byte, parts [][]byte) {
	for i, p := range parts {
		b = b[copy(b, p):]
		parts[i] = nil
	}
}

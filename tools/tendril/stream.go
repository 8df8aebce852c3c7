package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/store/object"
)

const streamExample = `  ffmpeg … -f rawvideo - | tendril stream push video --frame 6220800 &
  tendril stream pop video | ffplay …
  dmesg --follow | tendril stream push kernel --lines --drop-oldest --frames 1000
  tendril stream pop kernel -n 1 --wait 10s
  tendril stream ls
  tendril stream rm video`

func (c *cli) streamVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stream",
		Short: "Streams of objects: bounded channels between processes",
		Long: "Streams of objects: bounded channels between processes of one user. A push into a full stream waits for a reader,\n" +
			"or drops the oldest frame. Each frame goes to one reader. Frames are objects: shared, not copied.",
		Example: streamExample,
		GroupID: "store",
	}
	cmd.AddCommand(c.streamPushVerb(), c.streamPopVerb(), c.streamLsVerb(), c.streamRmVerb())
	return cmd
}

// pushing is what stream push was asked for.
type pushing struct {
	client.StreamOptions
	frame string // size of a frame
	lines bool
	more  bool
	wait  time.Duration
}

func (c *cli) streamPushVerb() *cobra.Command {
	var p pushing
	var most string
	cmd := &cobra.Command{
		Use:   "push STREAM [FILE…]",
		Short: "Push files, or standard input cut into frames, into a stream",
		Long: "Push each FILE as one frame. Without files, cut standard input into frames of --frame bytes (the last one may be\n" +
			"shorter), or into --lines. The stream is created if it does not exist, and ends with the input unless --more is set.",
		Example: "  tendril stream push frames *.png\n  tar c . | tendril stream push archive --frame 4MiB\n  tendril stream push jobs job-17.json --more",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if most != "" {
				n, err := humanize.ParseBytes(most)
				if err != nil {
					return usagef("--bytes %q: want a size such as 64MiB", most)
				}
				p.Bytes = n
			}
			return c.streamPush(cmd.Context(), args[0], args[1:], p)
		},
	}
	cmd.Flags().StringVar(&p.frame, "frame", "1MiB", "the size of a frame of standard input")
	cmd.Flags().BoolVar(&p.lines, "lines", false, "make each line of standard input a frame, without the newline")
	cmd.Flags().IntVar(&p.Frames, "frames", 0, "most frames that wait (default: unchanged; 16 for a new stream)")
	cmd.Flags().StringVar(&most, "bytes", "",
		"most bytes that wait, such as 64MiB (default: unchanged; no limit for a new stream)")
	cmd.Flags().BoolVar(&p.DropOldest, "drop-oldest", false, "drop the oldest frame instead of waiting for a reader")
	cmd.Flags().BoolVar(&p.Keep, "keep", false, "keep the stream when nobody has it open")
	cmd.Flags().BoolVar(&p.New, "new", false, "fail if the stream exists")
	cmd.Flags().BoolVar(&p.more, "more", false, "do not end the stream: other writers follow")
	cmd.Flags().DurationVar(&p.wait, "wait", -1, "how long to wait for room, for each frame (default: forever)")
	cmd.MarkFlagsMutuallyExclusive("lines", "frame")
	return cmd
}

func (c *cli) streamPush(ctx context.Context, name string, files []string, p pushing) error {
	frame, err := humanize.ParseBytes(p.frame)
	if err != nil || frame == 0 {
		return usagef("--frame %q: want a size such as 1MiB", p.frame)
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	p.Ahead = streamAhead
	w, err := conn.OpenWriter(ctx, name, p.StreamOptions)
	if errors.Is(err, object.ErrEnded) {
		return endedStream(name, err)
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	defer func() {
		if ctx.Err() == nil { // else the end of the connection tells readers that the stream is not whole
			w.Close(ctx)
		}
	}()
	switch {
	case len(files) > 0:
		err = c.pushFiles(ctx, w, files, p.wait)
	case p.lines:
		err = pushLines(ctx, w, patient{ctx, c.term.in}, p.wait)
	default:
		err = pushFrames(ctx, w, patient{ctx, c.term.in}, frame, p.wait)
	}
	if err == nil && !p.more {
		err = w.End(ctx)
	}
	if errors.Is(err, object.ErrEnded) {
		err = endedStream(name, err)
	}
	if err != nil {
		return fmt.Errorf("stream push %s: %w", name, err)
	}
	return nil
}

// endedStream says what is to be done about a stream that takes no more frames.
func endedStream(name string, err error) error {
	return hinted{fmt.Errorf("stream push %s: %w", name, err),
		"It stays until its last frame is read: tendril stream pop " + plain(name) + "    or: tendril stream rm " + plain(name)}
}

// streamAhead is how many frames are on their way at once.
const streamAhead = 4

func (c *cli) pushFiles(ctx context.Context, w *client.Writer, files []string, wait time.Duration) error {
	for _, name := range files {
		in, err := openInput(name, c.term.in)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(patient{ctx, in})
		in.Close()
		if err == nil {
			err = w.Write(ctx, data, nil, wait)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// pushFrames reads straight into the frames' memory.
func pushFrames(ctx context.Context, w *client.Writer, in io.Reader, size uint64, wait time.Duration) error {
	for {
		b, err := w.Buffer(ctx, size)
		if err != nil {
			return err
		}
		n, err := io.ReadFull(in, b.Bytes())
		switch {
		case err == io.EOF:
			return b.Abort(ctx)
		case err == io.ErrUnexpectedEOF: // the last one: as long as it is
			err = w.Write(ctx, b.Bytes()[:n], nil, wait)
			return errors.Join(err, b.Abort(ctx))
		case err == nil:
			err = w.Push(ctx, b, nil, wait) // the Writer's from here on
		default:
			err = errors.Join(err, b.Abort(ctx))
		}
		if err != nil {
			return err
		}
	}
}

// maxLineBytes bounds a frame that is a line.
const maxLineBytes = 16 << 20

func pushLines(ctx context.Context, w *client.Writer, in io.Reader, wait time.Duration) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() {
		if err := w.Write(ctx, lines.Bytes(), nil, wait); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (c *cli) streamPopVerb() *cobra.Command {
	var count int
	var wait time.Duration
	var dir string
	var lines bool
	cmd := &cobra.Command{
		Use:   "pop STREAM",
		Short: "Write the frames of a stream to standard output, or each to a file, until the stream ends",
		Example: "  tendril stream pop video | ffplay -f rawvideo …\n  tendril stream pop frames --dir out     # out/00000001 and so on\n" +
			"  tendril stream pop jobs -n 1 --wait 1m\n  tendril stream pop kernel --lines",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" && !lines && c.term.isOut {
				return usagef("refusing to write binary data to a terminal: use --dir, pipe the output, or use --lines for text")
			}
			err := c.streamPop(cmd.Context(), args[0], count, wait,
				func(f *client.Frame) error { return c.putFrame(f, dir, lines) })
			if errors.Is(err, object.ErrTimeout) {
				err = hinted{err, "See which streams there are, and who has them open, with: tendril stream ls"}
			}
			return err
		},
	}
	cmd.Flags().IntVarP(&count, "number", "n", 0, "stop after this many frames (0: at the end of the stream)")
	cmd.Flags().DurationVar(&wait, "wait", -1, "how long to wait for each frame (default: forever)")
	cmd.Flags().StringVar(&dir, "dir", "", "write each frame to a file in this directory, named by its number")
	cmd.Flags().BoolVar(&lines, "lines", false, "print each frame as a line, without control characters")
	cmd.MarkFlagsMutuallyExclusive("dir", "lines")
	return cmd
}

func (c *cli) streamPop(ctx context.Context, name string, count int, wait time.Duration,
	put func(*client.Frame) error) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := conn.OpenReader(ctx, name, client.StreamOptions{Existing: true})
	missing := errors.Is(err, object.ErrNotFound)
	if missing {
		r, err = conn.OpenReader(ctx, name, client.StreamOptions{})
	}
	if err != nil {
		return fmt.Errorf("stream pop %s: %w", name, err)
	}
	// After an interrupt, too, it waits until the daemon hands this process no frame any more: the next reader, who may
	// come as soon as this process has ended, is to get it.
	defer r.Close(context.WithoutCancel(ctx))
	for n := 0; n < count || count == 0; n++ {
		done := func() {}
		if n == 0 { // there may be nobody who writes
			done = c.awaitingFrame(name, missing)
		}
		f, err := r.Pop(ctx, wait)
		done()
		if errors.Is(err, object.ErrEnded) && (count == 0 || n > 0) {
			return nil
		}
		if err == nil {
			if err = put(f); err != nil {
				r.Unpop(f) // it was not delivered
			}
			f.Release()
		}
		if err != nil {
			return fmt.Errorf("stream pop %s: %w", name, err)
		}
	}
	return nil
}

// missingAfter is how long stream pop waits in silence for a stream that did not exist.
const missingAfter = time.Second

// awaitingFrame says what is waited for, until the caller calls done: elsewhere than on a terminal too where the stream
// did not exist, for its name may be wrong.
func (c *cli) awaitingFrame(name string, missing bool) (done func()) {
	what := "waiting for a frame of " + name
	if !missing {
		return c.doing(what)
	}
	stop, patience := make(chan struct{}), time.NewTimer(missingAfter)
	var saying sync.WaitGroup
	saying.Go(func() {
		defer patience.Stop()
		select {
		case <-patience.C:
		case <-stop:
			select {
			case <-patience.C: // both have come while this process had no processor
			default:
				return
			}
		}
		_, _ = fmt.Fprintf(c.term.err, "There was no stream %[1]s: waiting until somebody pushes into it "+
			"(tendril stream push %[1]s). End with Ctrl-C, or wait only as long as --wait says.\n", plain(name))
		moving := c.doing(what)
		<-stop
		moving()
	})
	return func() {
		close(stop)
		saying.Wait()
	}
}

func (c *cli) putFrame(f *client.Frame, dir string, lines bool) error {
	switch {
	case dir != "":
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		return writeFile(fmt.Sprintf("%s/%08d", dir, f.Number),
			func(w io.Writer) error { return copySteps(w, f.Bytes()) })
	case lines:
		_, err := fmt.Fprintln(c.term.out, plain(string(f.Bytes())))
		return err
	}
	_, err := c.term.out.Write(f.Bytes())
	return err
}

func (c *cli) streamLsVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls [PREFIX]",
		Short:   "List your streams and who has them open",
		Example: "  tendril stream ls\n  tendril stream ls video --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			prefix := strings.Join(args, "")
			none := "You have no streams. Open one: tendril stream push STREAM FILE"
			if prefix != "" {
				none = fmt.Sprintf("No stream has a name that begins with %q.", prefix)
			}
			return printListing(c, conn.EachStream(ctx, prefix), none,
				"NAME | STATE | WAITING | SIZE? | PUSHED?? | POPPED?? | DROPPED? | AGE?? | WRITERS? | READERS?", streamRow)
		}),
	})
}

func streamRow(st object.StreamInfo) []string {
	var writers, readers []string
	for _, u := range st.Users {
		who := fmt.Sprintf("%s (pid %d)", orDash(u.Program), u.PID)
		if u.Writes {
			writers = append(writers, who)
		}
		if u.Reads {
			readers = append(readers, who)
		}
	}
	return []string{
		st.Name, st.State, fmt.Sprintf("%d of %d", st.Frames, st.FramesAtMost), size(st.Bytes), fmt.Sprint(st.Pushed),
		fmt.Sprint(st.Popped), fmt.Sprint(st.Dropped),
		since(st.Created), orDash(strings.Join(writers, ", ")), orDash(strings.Join(readers, ", ")),
	}
}

func (c *cli) streamRmVerb() *cobra.Command {
	return &cobra.Command{
		Use:     "rm STREAM…",
		Short:   "End streams for everyone who has them open, and drop the frames that wait",
		Example: "  tendril stream rm video",
		Args:    cobra.MinimumNArgs(1),
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			var faults []error
			for _, name := range args {
				if err := conn.RemoveStream(ctx, name); err != nil {
					faults = append(faults, fmt.Errorf("stream rm %s: %w", name, err))
				}
			}
			return errors.Join(faults...)
		}),
	}
}

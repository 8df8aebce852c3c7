package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
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
		Long: "Streams of objects: bounded channels between processes of one user. A push into a full stream waits for a reader, or drops what\n" +
			"waits longest; each frame goes to one reader. Frames are objects: shared, not copied.",
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
		Long: "Push each FILE as a frame; without files, standard input: in frames of --frame bytes (the last one may be shorter), or by --lines.\n" +
			"The stream is made where it is missing, and ends with the input unless there are --more writers to come.",
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
	cmd.Flags().BoolVar(&p.lines, "lines", false, "a frame a line of standard input, without its end")
	cmd.Flags().IntVar(&p.Frames, "frames", 0, "how many may wait (default: as it is, 16 for a new stream)")
	cmd.Flags().StringVar(&most, "bytes", "", "how much may wait, such as 64MiB (default: as it is, for a new stream without bound)")
	cmd.Flags().BoolVar(&p.DropOldest, "drop-oldest", false, "drop what waits longest instead of waiting for a reader")
	cmd.Flags().BoolVar(&p.Keep, "keep", false, "the stream stays when nobody has it open")
	cmd.Flags().BoolVar(&p.New, "new", false, "it must not be there yet")
	cmd.Flags().BoolVar(&p.more, "more", false, "do not end the stream: others push, too, or later")
	cmd.Flags().DurationVar(&p.wait, "wait", -1, "how long to wait for room, each time (default: for ever)")
	cmd.MarkFlagsMutuallyExclusive("lines", "frame")
	return cmd
}

func (c *cli) streamPush(ctx context.Context, name string, files []string, p pushing) error {
	frame, err := humanize.ParseBytes(p.frame)
	if err != nil || frame == 0 {
		return usagef("--frame %q: want a size such as 1MiB", p.frame)
	}
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	p.Ahead = streamAhead
	w, err := conn.OpenWriter(name, p.StreamOptions)
	if err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	defer w.Close()
	switch {
	case len(files) > 0:
		err = c.pushFiles(ctx, w, files, p.wait)
	case p.lines:
		err = pushLines(ctx, w, c.term.in, p.wait)
	default:
		err = pushFrames(ctx, w, c.term.in, frame, p.wait)
	}
	if err == nil && !p.more {
		err = w.End()
	}
	if err != nil {
		return fmt.Errorf("stream push %s: %w", name, err)
	}
	return nil
}

// streamAhead is how many frames are on their way at once.
const streamAhead = 4

func (c *cli) pushFiles(ctx context.Context, w *client.Writer, files []string, wait time.Duration) error {
	for _, name := range files {
		in, err := openInput(name, c.term.in)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(in)
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
		b, err := w.Buffer(size)
		if err != nil {
			return err
		}
		n, err := io.ReadFull(in, b.Bytes())
		switch {
		case err == io.EOF:
			return b.Abort()
		case err == io.ErrUnexpectedEOF: // the last one: as long as it is
			err = w.Write(ctx, b.Bytes()[:n], nil, wait)
			return errors.Join(err, b.Abort())
		case err == nil:
			err = w.Push(ctx, b, nil, wait) // the Writer's from here on
		default:
			err = errors.Join(err, b.Abort())
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
				return usagef("frames are bytes that a terminal may not bear: name a directory (--dir), pipe them on, or say that they are --lines")
			}
			return c.streamPop(cmd.Context(), args[0], count, wait, func(f *client.Frame) error { return c.putFrame(f, dir, lines) })
		},
	}
	cmd.Flags().IntVarP(&count, "number", "n", 0, "end after so many frames (0: with the stream)")
	cmd.Flags().DurationVar(&wait, "wait", -1, "how long to wait for a frame, each time (default: for ever)")
	cmd.Flags().StringVar(&dir, "dir", "", "the directory for a file a frame, named by its number")
	cmd.Flags().BoolVar(&lines, "lines", false, "end each frame with a new line, and leave out what could move a terminal's cursor")
	cmd.MarkFlagsMutuallyExclusive("dir", "lines")
	return cmd
}

func (c *cli) streamPop(ctx context.Context, name string, count int, wait time.Duration, put func(*client.Frame) error) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := conn.OpenReader(name, client.StreamOptions{})
	if err != nil {
		return fmt.Errorf("stream pop %s: %w", name, err)
	}
	defer r.Close()
	for n := 0; n < count || count == 0; n++ {
		f, err := r.Pop(ctx, wait)
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

func (c *cli) putFrame(f *client.Frame, dir string, lines bool) error {
	switch {
	case dir != "":
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		return writeFile(fmt.Sprintf("%s/%08d", dir, f.Number), func(w io.Writer) error { return copySteps(w, f.Bytes()) })
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
		RunE: c.asking(func(conn *client.Conn, args []string) error {
			list := conn.EachStream(strings.Join(args, ""))
			return printListing(c, list, "NAME | STATE | WAITING | SIZE | PUSHED | POPPED | DROPPED | AGE | WRITERS | READERS", streamRow)
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
		st.Name, st.State, fmt.Sprintf("%d of %d", st.Frames, st.FramesAtMost), size(st.Bytes), fmt.Sprint(st.Pushed), fmt.Sprint(st.Popped), fmt.Sprint(st.Dropped),
		since(st.Created), orDash(strings.Join(writers, ", ")), orDash(strings.Join(readers, ", ")),
	}
}

func (c *cli) streamRmVerb() *cobra.Command {
	return &cobra.Command{
		Use:     "rm STREAM…",
		Short:   "End streams for everybody who has them open, and drop what waits",
		Example: "  tendril stream rm video",
		Args:    cobra.MinimumNArgs(1),
		RunE: c.asking(func(conn *client.Conn, args []string) error {
			var faults []error
			for _, name := range args {
				if err := conn.RemoveStream(name); err != nil {
					faults = append(faults, fmt.Errorf("stream rm %s: %w", name, err))
				}
			}
			return errors.Join(faults...)
		}),
	}
}

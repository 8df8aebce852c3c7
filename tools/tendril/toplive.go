package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon"
	"tendril/store/object"
)

// What a terminal is told: the alternate screen without a cursor, back, the upper left corner, and to clear what
// follows on the line or below.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	restOfLine  = "\x1b[K"
	restBelow   = "\x1b[J"
)

// liveObjects is how many objects are asked for: more than a screen shows, so that sorting has something to sort.
const liveObjects = 200

// glance is how long the screen may be of another size, and a signal unheard.
const glance = 200 * time.Millisecond

// order is one that objects may be in.
type order struct {
	key     byte
	by      string
	compare func(a, b object.Held) int
}

var orders = []order{
	{'s', "size", func(a, b object.Held) int { return cmp.Compare(b.SizeBytes, a.SizeBytes) }},
	{'a', "age", func(a, b object.Held) int { return a.Created.Compare(b.Created) }},
	{'r', "references", func(a, b object.Held) int { return cmp.Compare(b.Refs, a.Refs) }},
	{'n', "name", func(a, b object.Held) int {
		return cmp.Compare(cmp.Or(a.Name, a.Published), cmp.Or(b.Name, b.Published))
	}},
}

// liveTop is what `tendril top` shows on a terminal until q is pressed.
type liveTop struct {
	c        *cli
	conn     *client.Conn
	interval time.Duration
	order    order

	objects []object.Held
	status  daemon.Status
}

func (l *liveTop) run(ctx context.Context) error {
	fd := int(l.c.term.in.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	fmt.Fprint(l.c.term.out, enterScreen)
	defer func() {
		fmt.Fprint(l.c.term.out, leaveScreen)
		_ = term.Restore(fd, before) // a terminal that is gone needs nothing
	}()
	for ctx.Err() == nil {
		if err := l.ask(ctx); err != nil {
			return err
		}
		if quit, err := l.show(ctx, fd); quit || err != nil {
			return err
		}
	}
	return nil
}

// ask gets what there is to show.
func (l *liveTop) ask(ctx context.Context) (err error) {
	if l.objects, err = admin.Of(l.conn).Top(ctx, liveObjects); err != nil {
		return err
	}
	l.status, err = nodeStatus(ctx, l.conn)
	return err
}

// show shows that for an interval, and does what the keys say.
func (l *liveTop) show(ctx context.Context, fd int) (quit bool, err error) {
	drawn := screen{}
	for end := time.Now().Add(l.interval); ctx.Err() == nil; {
		if now := screenOf(l.c.term.in); now != drawn {
			drawn = now
			if err := l.draw(now); err != nil {
				return true, err
			}
		}
		wait := min(time.Until(end), glance)
		if wait <= 0 {
			return false, nil
		}
		key, err := readKey(fd, wait)
		switch {
		case err != nil:
			return true, err
		case key == 'q' || key == 'Q' || key == ctrlC:
			return true, nil
		case key == ' ':
			return false, nil
		}
		for _, o := range orders {
			if key == o.key {
				l.order, drawn = o, screen{}
			}
		}
	}
	return true, nil
}

const ctrlC = 3 // what it is where the terminal makes no signal of it

// readKey waits for a key; 0 is none. A terminal that is gone is ctrlC.
func readKey(fd int, wait time.Duration) (byte, error) {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, max(int(wait.Milliseconds()), 1))
	if err == unix.EINTR || err == nil && n == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var b [1]byte
	if n, err := unix.Read(fd, b[:]); n != 1 || err != nil {
		return ctrlC, nil
	}
	return b[0], nil
}

// draw writes the screen again: as many lines as it has, and none of them wider.
func (l *liveTop) draw(s screen) error {
	var page bytes.Buffer
	on := *l.c
	on.term.out, on.term.screen = &page, s
	slices.SortStableFunc(l.objects, l.order.compare)
	st := l.status.Store
	what := "objects by " + l.order.by
	if len(l.objects) >= liveObjects {
		what = fmt.Sprintf("the %d largest objects by %s", liveObjects, l.order.by)
	}
	head := fmt.Sprintf("tendril top: node %s, %s, %s of %s in use", plain(l.status.Node.Name),
		object.Counted(st.Objects, "object"), size(st.ChargedBytes), size(st.CapacityBytes))
	keys := "q quit, space now; sort by: s size, a age, r references, n name"
	err := firstError(hanging(&page, s, "", nil, head), hanging(&page, s, "", nil, keys),
		on.printPrograms(l.status), on.section(what, topHead, topRows(l.objects)))
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(page.String(), "\n"), "\n")
	if s.rows > 0 && len(lines) > s.rows {
		lines = append(lines[:s.rows-1], s.in(remarks, "(there is more below)"))
	}
	_, err = io.WriteString(l.c.term.out, toTop+strings.Join(lines, restOfLine+"\r\n")+restOfLine+restBelow)
	return err
}

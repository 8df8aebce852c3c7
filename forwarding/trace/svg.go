package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"time"
)

// A picture is as wide as this, in pixels, and has at most so many rows; what falls on less than a step beside what is
// drawn is left out, so a picture is small however much a trace holds.
const (
	pictureWidth = 1200
	pictureName  = 230 // for the rows' names
	pictureRight = 30  // for the last time's text
	pictureRow   = 22
	pictureHead  = 34
	pictureRows  = 48
	pictureStep  = 0.4
	letterWidth  = 6.2 // of the 10-pixel font, about
)

// The colours of what is drawn.
const (
	colourCall   = "#9ec5fe"
	colourWait   = "#f7a072"
	colourWire   = "#8d99ae"
	colourDriver = "#d9d2e9"
	colourDevice = "#7fc8a9"
)

// picture gathers rows.
type picture struct {
	t    *Timeline
	rows []*pictureLine
	by   map[pictureKey]*pictureLine
	out  *bufio.Writer
}

type pictureKey struct {
	sort int // 0 a thread, 1 the wire, 2 a queue
	pid  uint32
	a, b uint64 // the thread; the worker and its queue
	part int    // which of the rows of one thing
}

// pictureLine is a row: boxes, those with a smaller layer first.
type pictureLine struct {
	key   pictureKey
	name  string
	boxes []pictureBox
}

type pictureBox struct {
	start, end    int64
	layer         int
	colour, label string
}

// WriteSVG draws the timeline as one picture: the program's threads, with what they wait for; the wire; each queue's
// commands, when the driver was given them and when they ran. It returns the writer's error.
func (t *Timeline) WriteSVG(w io.Writer) error {
	p := &picture{t: t, by: map[pictureKey]*pictureLine{}, out: bufio.NewWriter(w)}
	for i := range t.Calls {
		c := &t.Calls[i]
		p.add(p.thread(c.PID, c.Thread), pictureBox{c.Start, c.End, 0, colourCall, c.Name})
	}
	for i := range t.Trips {
		if r := &t.Trips[i]; r.Call >= 0 {
			p.add(p.thread(r.PID, r.Thread), pictureBox{r.Start, r.End, 1, colourWait, "waits: " + r.Cause.String()})
		}
	}
	for i := range t.Wires {
		p.wire(&t.Wires[i])
	}
	for i := range t.Commands {
		p.command(&t.Commands[i])
	}
	p.draw()
	return p.out.Flush()
}

func (p *picture) line(key pictureKey, name string) *pictureLine {
	l := p.by[key]
	if l == nil {
		l = &pictureLine{key: key, name: name}
		p.by[key], p.rows = l, append(p.rows, l)
	}
	return l
}

func (p *picture) thread(pid, thread uint32) *pictureLine {
	name := p.t.Threads[uint64(pid)<<32|uint64(thread)]
	return p.line(pictureKey{pid: pid, a: uint64(thread)}, "thread "+cmp.Or(name, fmt.Sprint(thread)))
}

func (p *picture) add(l *pictureLine, b pictureBox) {
	b.start, b.end = max(b.start, p.t.Begin), min(b.end, p.t.End)
	if b.end >= b.start {
		l.boxes = append(l.boxes, b)
	}
}

func (p *picture) wire(w *Wire) {
	name, down := fmt.Sprintf("wire to worker %d", w.Worker), 0
	if w.FromWorker {
		name, down = fmt.Sprintf("wire from worker %d", w.Worker), 1
	}
	p.add(p.line(pictureKey{sort: 1, pid: w.PID, a: uint64(w.Worker), part: down}, name),
		pictureBox{w.Start, w.Start + w.Took, 0, colourWire, ""})
}

func (p *picture) command(c *Command) {
	if c.Taken == 0 {
		return
	}
	name := fmt.Sprintf("worker %d, queue %d", c.Worker, c.Queue)
	key := pictureKey{sort: 2, pid: c.PID, a: uint64(c.Worker), b: c.Queue}
	if c.Given > 0 && c.Begun > 0 {
		p.add(p.line(key, name+": driver"), pictureBox{c.Begun, c.Given, 0, colourDriver, c.title()})
	}
	if c.End > 0 && c.Start > 0 {
		key.part = 1
		p.add(p.line(key, name+": device"), pictureBox{c.Start, c.End, 0, colourDevice, c.title()})
	}
}

func (p *picture) draw() {
	slices.SortFunc(p.rows, func(a, b *pictureLine) int {
		x, y := a.key, b.key
		return cmp.Or(cmp.Compare(x.sort, y.sort), cmp.Compare(x.pid, y.pid), cmp.Compare(x.a, y.a),
			cmp.Compare(x.b, y.b), cmp.Compare(x.part, y.part))
	})
	more := len(p.rows) - pictureRows
	rows := p.rows[:min(len(p.rows), pictureRows)]
	height := pictureHead + pictureRow*len(rows) + pictureRow
	fmt.Fprintf(p.out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"10\">\n", pictureWidth, height)
	fmt.Fprintf(p.out, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", pictureWidth, height)
	p.scale(height - pictureRow)
	for i, l := range rows {
		p.row(l, pictureHead+pictureRow*i)
	}
	p.legend(height-pictureRow+15, more)
	p.out.WriteString("</svg>\n")
}

// x is where a time is.
func (p *picture) x(at int64) float64 {
	return pictureName + float64(at-p.t.Begin)*(pictureWidth-pictureName-pictureRight)/float64(max(p.t.End-p.t.Begin,
		1))
}

// scale draws lines at round times, ten of them at most.
func (p *picture) scale(bottom int) {
	span := p.t.End - p.t.Begin
	step := roundStep(span)
	for at := int64(0); at <= span; at += step {
		x := p.x(p.t.Begin + at)
		fmt.Fprintf(p.out, "<path d=\"M%.1f 22V%d\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"16\" text-anchor=\"middle\" fill=\"#555\">%s</text>\n", x, bottom, x, time.Duration(at))
	}
}

// roundStep is the smallest of 1, 2, 5, 10, 20, 50… ns that divides span into ten parts or fewer.
func roundStep(span int64) int64 {
	step := int64(1)
	for i := 0; span/step >= 10; i++ {
		if step *= 2; i%3 == 1 {
			step += step / 4 // 2 to 5
		}
	}
	return step
}

func (p *picture) row(l *pictureLine, y int) {
	fmt.Fprintf(p.out, "<text x=\"6\" y=\"%d\">%s</text>\n", y+14, escaped(shortened(l.name, pictureName-12)))
	slices.SortStableFunc(l.boxes, func(a, b pictureBox) int {
		return cmp.Or(cmp.Compare(a.layer, b.layer), cmp.Compare(a.start, b.start), -cmp.Compare(a.end, b.end))
	})
	layer, drawn := -1, 0.0
	for _, b := range l.boxes {
		x, end := p.x(b.start), p.x(b.end)
		if b.layer != layer {
			layer, drawn = b.layer, 0
		}
		if end < drawn+pictureStep {
			continue // no more than what is there already
		}
		drawn = max(end, x+pictureStep)
		wide := max(drawn-x, 0.8)
		fmt.Fprintf(p.out, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", x, y+2+4*b.layer,
			wide, pictureRow-6-4*b.layer, b.colour)
		if s := shortened(b.label, wide-4); s != "" {
			fmt.Fprintf(p.out, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", x+2, y+14, escaped(s))
		}
	}
}

func (p *picture) legend(y, more int) {
	x := 6
	for _, l := range []struct{ colour, text string }{
		{colourCall, "an OpenCL call"}, {colourWait, "of it, waiting for an answer"}, {colourWire,
			"records and chunks"}, {colourDriver, "enqueued with the driver"}, {colourDevice, "on the device"},
	} {
		fmt.Fprintf(p.out, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"10\" fill=\"%s\"/><text x=\"%d\" y=\"%d\">%s</text>\n", x, y-9, l.colour, x+16, y, l.text)
		x += 190
	}
	if more > 0 {
		fmt.Fprintf(p.out, "<text x=\"%d\" y=\"%d\">and %d more rows</text>\n", x, y, more)
	}
}

// shortened is as much of s as fits, "" where that says nothing.
func shortened(s string, width float64) string {
	letters, n := []rune(s), int(width/letterWidth)
	switch {
	case n >= len(letters):
		return s
	case n < 4:
		return ""
	}
	return string(letters[:n-1]) + "…"
}

func escaped(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer takes everything
	return b.String()
}

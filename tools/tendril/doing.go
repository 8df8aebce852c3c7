package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// doingEvery is the time between two turns of the line that doing shows.
const doingEvery = 200 * time.Millisecond

// doing shows on a terminal what is done, and for how long, until the caller calls done. It is a line on standard error
// that moves, and is gone afterwards. Elsewhere nothing is shown.
func (c *cli) doing(what string) (done func()) {
	if !c.term.isErr {
		return func() {}
	}
	stop := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() { c.showDoing(plain(what), stop) })
	return func() {
		close(stop)
		showing.Wait()
	}
}

// showDoing uses no control sequence but the carriage return: every terminal has it.
func (c *cli) showDoing(what string, stop chan struct{}) {
	began, width := time.Now(), 0
	tick := time.NewTicker(doingEvery)
	defer tick.Stop()
	for turn := 0; ; turn++ {
		text := fmt.Sprintf("%c %s (%v)", `|/-\`[turn%4], what, time.Since(began).Round(time.Second))
		if columns := c.term.errScreen.columns; columns > 0 {
			text = widths.Truncate(text, columns-1, "…") // a full line would go on below
		}
		now := widths.StringWidth(text)
		_, _ = io.WriteString(c.term.err, "\r"+text+strings.Repeat(" ", max(width-now, 0)))
		width = now
		select {
		case <-stop:
			_, _ = io.WriteString(c.term.err, "\r"+strings.Repeat(" ", width)+"\r")
			return
		case <-tick.C:
		}
	}
}

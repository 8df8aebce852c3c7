package main

import (
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progressStep is how much is copied between two looks at the clock; progressFrom is where a copy is long enough for a
// bar.
const (
	progressStep = 4 << 20
	progressFrom = 64 << 20
)

// progress is a bar on the terminal, or nothing.
type progress struct {
	all *mpb.Progress
	bar *mpb.Bar
}

// newProgress shows a bar for a long copy when standard error is a terminal. The caller calls end.
func (c *cli) newProgress(what string, total uint64) progress {
	if !c.term.isErr || total < progressFrom {
		return progress{}
	}
	all := mpb.New(mpb.WithOutput(c.term.err), mpb.WithWidth(48))
	bar := all.AddBar(int64(total), mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(what+" ")),
		mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f "),
			decor.AverageSpeed(decor.SizeB1024(0), "% .1f ")))
	return progress{all, bar}
}

func (p progress) add(n int) {
	if p.bar != nil {
		p.bar.IncrBy(n)
	}
}

// Write counts bytes that are written elsewhere, too.
func (p progress) Write(b []byte) (int, error) {
	p.add(len(b))
	return len(b), nil
}

// end takes the bar away, whether the copy was finished or not.
func (p progress) end() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.all.Wait()
	}
}

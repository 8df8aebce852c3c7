package engine

import "time"

// bursts foresees which command is the last before a finish: a program in a loop enqueues as many each time. That one
// gets an event, and the finish needs no marker: one object of the driver's less, and one thing less that the device
// does behind the kernel before the program goes on. The driver is told to start while the finish is still on its way.
type bursts struct {
	now   int // commands since the last finish
	was   int // before it
	same  int // times in a row that there were as many
	short int // times in a row that the finish was answered soon
}

// surelySame is how often in a row a burst has been as long, for the next one to be expected to be.
const surelySame = 3

// command counts one, and says whether a finish is expected behind it.
func (b *bursts) command() bool {
	b.now++
	return b.foreseen()
}

// foreseen says whether a finish is expected here.
func (b *bursts) foreseen() bool { return b.now == b.was && b.same >= surelySame }

// answered notes how long a finish took to be answered.
func (b *bursts) answered(took time.Duration) {
	if b.short++; took > briefWait {
		b.short = 0
	}
}

// finish notes one.
func (b *bursts) finish() {
	if b.now != b.was {
		b.same = 0
	}
	b.was, b.now = b.now, 0
	b.same++
}

package engine

// bursts foresees which command is the last before a finish: a program in a loop enqueues as many each time. That one
// gets an event, and the finish needs no marker: one object of the driver's less, and one thing less that the device
// does behind the kernel before the program goes on. The driver is told to start while the finish is still on its way.
type bursts struct {
	now  int // commands since the last finish
	was  int // before it
	same int // times in a row that there were as many
}

// surelySame is how often in a row a burst has been as long, for the next one to be expected to be.
const surelySame = 3

// command counts one, and says whether a finish is expected behind it.
func (b *bursts) command() bool {
	b.now++
	return b.now == b.was && b.same >= surelySame
}

// finish notes one.
func (b *bursts) finish() {
	if b.now != b.was {
		b.same = 0
	}
	b.was, b.now = b.now, 0
	b.same++
}

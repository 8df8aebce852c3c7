package link

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// meter estimates how many bytes a second one connection takes, and whether that is the network's doing.
//
// The rate is the smaller of what the kernel measured between a segment and its acknowledgement (tcp(7), TCP_INFO's
// delivery rate) and what writes took: a write is over at once while the kernel has room, and the kernel knows nothing
// of what is behind a proxy. Of the last few looks the middle one counts: the first bytes after a pause may go at once,
// whatever the link, and a machine that is busy with something else takes longer. Where the kernel mostly waited for
// the other side to read, the brake is a busy machine, which packing makes busier, or a proxy: only a rate too small
// for a machine counts then.
type meter struct {
	rate   float64    // bytes a second; 0: not known
	last   [5]float64 // of the last looks
	looks  int
	behind bool // the brake is behind the network, for all that is known

	bytes int // written since the last look
	spent time.Duration
	busy  uint64  // µs ever, of TCP_INFO: there was something to send
	held  uint64  // likewise, and the receiver's window was full
	known float64 // 0, or the rate whatever is measured: a test's
}

const (
	fastLane = 200e6 // bytes a second: a connection that takes so much is left alone
	// likewise, where the other side's reading is the brake: no machine that does anything reads so slowly
	fastReads   = 40e6
	firstLook   = 64 << 10
	enoughLooks = 3 // before a connection counts as slow: one look may fall on a busy moment
	laterLook   = 256 << 10
	rareLook    = 1 << 20 // while the connection is a fast one
)

// slow says that the connection may take fewer bytes a second than can be packed.
func (m *meter) slow() bool {
	limit := float64(fastLane)
	if m.behind {
		limit = fastReads
	}
	return m.rate != 0 && m.rate <= limit && (m.looks >= enoughLooks || m.known != 0)
}

// wrote notes a write of n bytes.
func (m *meter) wrote(fd, n int, took time.Duration) {
	m.bytes += n
	m.spent += took
	if m.bytes < m.nextLook() {
		return
	}
	rate := float64(m.bytes) / max(m.spent.Seconds(), 1e-9)
	m.bytes, m.spent, m.behind = 0, 0, true
	// else: not TCP
	if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.Delivery_rate > 0 {
		rate = min(rate, float64(info.Delivery_rate))
		busy, held := info.Busy_time-min(m.busy, info.Busy_time), info.Rwnd_limited-min(m.held, info.Rwnd_limited)
		m.busy, m.held = info.Busy_time, info.Rwnd_limited
		m.behind = held > busy/2
	}
	m.last[m.looks%len(m.last)] = rate
	m.looks++
	if m.rate = m.middle(); m.known != 0 {
		m.rate, m.behind = m.known, false
	}
}

func (m *meter) nextLook() int {
	switch {
	case m.looks == 0:
		return firstLook
	case m.looks < len(m.last) || m.slow():
		return laterLook
	}
	return rareLook
}

// middle is the median of the last looks.
func (m *meter) middle() float64 {
	sorted := m.last
	few := sorted[:min(m.looks, len(sorted))]
	slices.Sort(few)
	return few[len(few)/2]
}

// anew makes the next writes count alone.
func (m *meter) anew() { m.bytes, m.spent, m.looks = 0, 0, 0 }

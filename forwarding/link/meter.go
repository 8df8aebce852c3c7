package link

import (
	"time"

	"golang.org/x/sys/unix"
)

// meter estimates how many bytes a second one connection takes: what the kernel measured between a segment and its acknowledgement (tcp(7),
// TCP_INFO's delivery rate), and how long writes took. The smaller one counts: a write is over at once while the kernel has room, and the kernel
// knows nothing of what is behind a proxy.
type meter struct {
	rate  float64 // bytes a second; 0: not known
	bytes int     // written since the last look
	spent time.Duration
	known float64 // 0, or the rate whatever is measured: a test's
}

const (
	firstLook = 64 << 10 // bytes
	laterLook = 1 << 20
)

// wrote notes a write of n bytes.
func (m *meter) wrote(fd, n int, took time.Duration) {
	m.bytes += n
	m.spent += took
	if m.bytes < firstLook || m.rate != 0 && m.bytes < laterLook {
		return
	}
	rate := float64(m.bytes) / max(m.spent.Seconds(), 1e-9)
	if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.Delivery_rate > 0 { // else: not TCP
		rate = min(rate, float64(info.Delivery_rate))
	}
	if m.known != 0 {
		rate = m.known
	}
	m.rate, m.bytes, m.spent = rate, 0, 0
}

// anew makes the next write count alone.
func (m *meter) anew() { m.bytes, m.spent = 0, 0 }

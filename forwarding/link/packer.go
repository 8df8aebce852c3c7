package link

import (
	"time"

	"github.com/klauspost/compress/s2"

	"tendril/forwarding/clwire"
)

// packer makes the chunks of one lane smaller where that brings them over sooner: while its connection takes fewer
// bytes a second than it can pack, and the bytes at hand can be packed. Both are measured as the lane goes. It belongs
// to who holds Lane.mu.
type packer struct {
	with  *Compression
	meter meter

	speed   float64        // bytes of a program packed a second; 0: not known
	way     clwire.Packing // that worked last
	skip    int            // chunks that go plain before the next try
	pause   int            // skip after the next try in vain
	packing time.Duration  // spent here, and in writing, on packed chunks since the last look at what was the brake
	writing time.Duration
	looked  int // packed chunks since then
	plain   int // their bytes, before and after
	wired   int

	buf, words []byte // scratch; nil until needed
}

const (
	worthRatio = 0.9 // of a chunk's bytes must be left at most
	wordsRatio = 0.8 // more than this left: words may do better
	headroom   = 1.5 // how much faster than the connection packing must be
	leastPack  = 4 << 10
	pauseMax   = 64 // chunks between two tries in vain, in the end: 16 MiB
	// bytes that a lane which survives its connections keeps of packed chunks; beyond it chunks go plain
	maxPacked = 8 << 20

	// After lookEvery packed chunks that the connection did not hold up, plainRun go plain, to see what it takes. It
	// did where it takes less than half of what packing makes, however much of that the kernel keeps for later.
	lookEvery = 24
	plainRun  = 5
)

// pack returns a chunk in fewer bytes and notes that in its header, or returns nil where it should go as it is. The
// bytes are the packer's, until the next call, unless keep.
func (p *packer) pack(h *clwire.LaneHeader, payload []byte, keep bool) []byte {
	if h.Skipped || len(payload) < leastPack || p.with.greatest.Load() == 0 {
		return nil
	}
	if !p.meter.slow() {
		return nil
	}
	if p.skip > 0 {
		p.skip--
		return nil
	}
	began := time.Now()
	way, packed := p.tryWays(payload)
	took := time.Since(began)
	p.learn(len(payload), took)
	if packed == nil || p.speed < headroom*p.meter.rate {
		p.pause = min(max(1, 2*p.pause), pauseMax)
		p.skip = p.pause
		return nil
	}
	p.pause = 0
	p.packing += took
	h.Packing, h.Packed = way, uint32(len(packed))
	if keep {
		packed = append(make([]byte, 0, len(packed)), packed...)
	}
	return packed
}

func (p *packer) learn(n int, took time.Duration) {
	speed := float64(n) / max(took.Seconds(), 1e-9)
	if p.speed == 0 {
		p.speed = speed
	}
	p.speed += (speed - p.speed) / 4
}

// tryWays packs in the way that worked last, and in the other where that no longer does.
func (p *packer) tryWays(payload []byte) (way clwire.Packing, packed []byte) {
	if p.buf == nil {
		p.buf = make([]byte, s2.MaxEncodedLen(clwire.MaxChunk))
		p.way = clwire.PackedS2
	}
	first := p.packAs(p.way, payload)
	if float64(first) <= wordsRatio*float64(len(payload)) {
		return p.way, p.buf[:first]
	}
	other := clwire.PackedS2 + clwire.PackedWords - p.way
	second := len(payload)
	if p.with.greatest.Load() >= uint32(other) {
		second = p.packAs(other, payload)
	}
	switch {
	case float64(min(first, second)) > worthRatio*float64(len(payload)):
		return 0, nil
	case second <= first:
		p.way = other
		return other, p.buf[:second]
	}
	return p.way, p.buf[:p.packAs(p.way, payload)] // rare: the two ways are close
}

// packAs leaves a chunk packed in buf and returns how long it is.
func (p *packer) packAs(way clwire.Packing, payload []byte) int {
	if way == clwire.PackedWords {
		if p.words == nil {
			p.words = make([]byte, clwire.MaxChunk)
		}
		split(p.words, payload)
		payload = p.words[:len(payload)]
	}
	return len(s2.Encode(p.buf, payload))
}

// wrote learns from a chunk that the connection took.
func (p *packer) wrote(c *laneConn, h *clwire.LaneHeader, took time.Duration) {
	p.with.sent(h)
	p.meter.wrote(c.raw.fd, int(h.WireBytes()), took)
	if h.Packing == clwire.Plain {
		return
	}
	p.writing += took
	p.plain += int(h.Length)
	p.wired += int(h.Packed)
	if p.looked++; p.looked < lookEvery {
		return
	}
	if produced := p.speed * float64(p.wired) / float64(p.plain); p.writing < p.packing/2 && p.meter.rate > produced/2 {
		p.skip = plainRun
		p.meter.anew()
	}
	p.looked, p.packing, p.writing, p.plain, p.wired = 0, 0, 0, 0, 0
}

// split puts the first bytes of all 4-byte words of from first, then their second ones, and so on.
func split(to, from []byte) {
	n := len(from) / 4
	a, b, c, d := to[:n], to[n:2*n], to[2*n:3*n], to[3*n:4*n]
	for i := range a {
		w := from[4*i:][:4]
		a[i], b[i], c[i], d[i] = w[0], w[1], w[2], w[3]
	}
	copy(to[4*n:], from[4*n:])
}

// join undoes split.
func join(to, from []byte) {
	n := len(to) / 4
	a, b, c, d := from[:n], from[n:2*n], from[2*n:3*n], from[3*n:4*n]
	for i := range a {
		w := to[4*i:][:4]
		w[0], w[1], w[2], w[3] = a[i], b[i], c[i], d[i]
	}
	copy(to[4*n:], from[4*n:len(to)])
}

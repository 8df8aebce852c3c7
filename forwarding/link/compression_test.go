package link

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"testing"

	"tendril/forwarding/clwire"
)

// What programs move: text, a smooth field of floats, and bytes that nothing makes fewer.
func text(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "station %d: temperature %d, pressure %d\n", i%37, i*i%311, 1000+i%29)
	}
	return b.Bytes()[:n]
}

func field(n int) []byte {
	b := make([]byte, 0, n+4)
	for i := 0; len(b) < n; i++ {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(math.Sin(float64(i)/700))))
	}
	return b[:n]
}

func noise(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// slowPacker packs as for a connection that takes so many bytes a second.
func slowPacker(rate float64) *packer {
	c := &Compression{}
	c.Allow(clwire.GreatestPacking)
	return &packer{with: c, meter: meter{rate: rate, known: rate}}
}

// A chunk comes out as it went in, by the way that suits it, read whole, in parts, or not at all.
func TestPackedChunks(t *testing.T) {
	for _, x := range []struct {
		name string
		data []byte
		way  clwire.Packing
	}{
		{"text", text(clwire.MaxChunk), clwire.PackedS2}, {"text of odd length", text(70001), clwire.PackedS2},
		{"field", field(clwire.MaxChunk), clwire.PackedWords},
		{"field of odd length", field(99999), clwire.PackedWords},
		{"zeros", make([]byte, clwire.MaxChunk), clwire.PackedS2}, {"noise", noise(clwire.MaxChunk), clwire.Plain},
		{"too little", text(100), clwire.Plain},
	} {
		t.Run(x.name, func(t *testing.T) {
			h := clwire.LaneHeader{Op: 1, Length: uint32(len(x.data))}
			packed := slowPacker(1).pack(&h, x.data, true)
			if h.Packing != x.way || (packed == nil) != (x.way == clwire.Plain) {
				t.Fatalf("it went as %d", h.Packing)
			}
			if packed == nil {
				return
			}
			for _, part := range []int{len(x.data), 1000, len(x.data) - 1} {
				l := packedLane(t, h, packed)
				got := make([]byte, 0, len(x.data))
				for len(got) < len(x.data) {
					p := make([]byte, min(part, len(x.data)-len(got)))
					if err := l.Read(p); err != nil {
						t.Fatal(err)
					}
					got = append(got, p...)
				}
				if !bytes.Equal(got, x.data) {
					t.Errorf("read in parts of %d it has other bytes", part)
				}
				wantTrailer(t, l)
			}
			l := packedLane(t, h, packed)
			if err := l.Discard(len(x.data)); err != nil {
				t.Fatal(err)
			}
			wantTrailer(t, l)
		})
	}
}

var trailer = []byte("what follows")

// packedLane is a lane on which a chunk stands, whose header was read, and then trailer.
func packedLane(t testing.TB, h clwire.LaneHeader, packed []byte) *Lane {
	t.Helper()
	a, b := tcpFiles(t)
	l, err := OpenLane(Worker, b, Options{Compression: &Compression{}})
	b.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var header [clwire.LaneHeaderBytes]byte
	h.Put(header[:])
	go func() {
		defer a.Close()
		a.Write(append(append(header[:], packed...), trailer...))
	}()
	if got, err := l.Header(); err != nil || got != h {
		t.Fatalf("%+v came as %+v: %v", h, got, err)
	}
	return l
}

func wantTrailer(t testing.TB, l *Lane) {
	t.Helper()
	p := make([]byte, len(trailer))
	if err := l.Read(p); err != nil || !bytes.Equal(p, trailer) {
		t.Fatalf("after the chunk: %q, %v", p, err)
	}
}

// Bytes that another release packed come out the same.
func TestPackedGolden(t *testing.T) {
	for _, x := range []struct {
		packing       clwire.Packing
		packed, plain string // packed in hex
	}{
		{clwire.PackedS2, "18" + "0c61626364" + "4e0400", "abcdabcdabcdabcdabcdabcd"},
		{clwire.PackedWords, "1a" + "64" + "616161616161" + "626262626262" + "636363636363" + "646464646464" + "7879",
			"abcdabcdabcdabcdabcdabcdxy"},
	} {
		packed, err := hex.DecodeString(x.packed)
		if err != nil {
			t.Fatal(err)
		}
		u := unpacker{now: clwire.LaneHeader{Packing: x.packing, Packed: uint32(len(packed))}, wire: packed}
		got := make([]byte, len(x.plain))
		if err := u.unpack(got); err != nil || string(got) != x.plain {
			t.Errorf("%d: %q, %v", x.packing, got, err)
		}
	}
}

// Noise is tried now and then only; what can be packed after it is found.
func TestNoiseIsLeftAlone(t *testing.T) {
	p := slowPacker(1)
	data, tries := noise(64<<10), 0
	for range 1000 {
		before := p.skip
		p.pack(&clwire.LaneHeader{Length: 64 << 10}, data, false)
		if before == 0 {
			tries++
		}
	}
	if tries < 10 || tries > 25 {
		t.Errorf("%d of 1000 chunks were tried", tries)
	}
	data = text(64 << 10)
	for i := 0; ; i++ {
		if p.pack(&clwire.LaneHeader{Length: 64 << 10}, data, false) != nil {
			break
		}
		if i > pauseMax {
			t.Fatal("text after noise goes plain for ever")
		}
	}
	if p.pack(&clwire.LaneHeader{Length: 64 << 10}, data, false) == nil {
		t.Error("text after packed text goes plain")
	}
}

// Who is as fast as the packing, who was not asked yet, and whose peer takes nothing packed: all plain.
func TestFastConnectionsGoPlain(t *testing.T) {
	data := text(64 << 10)
	silent := slowPacker(1)
	silent.with.greatest.Store(0)
	behind := slowPacker(fastReads + 1)
	behind.meter.behind = true
	for name, p := range map[string]*packer{"fast": slowPacker(fastLane + 1), "fast reader": behind,
		"unknown": slowPacker(0), "silent peer": silent} {
		for range 100 {
			if p.pack(&clwire.LaneHeader{Length: 64 << 10}, data, false) != nil {
				t.Errorf("%s: packed", name)
				break
			}
		}
		if p.buf != nil {
			t.Errorf("%s: tried", name)
		}
	}
	slow := slowPacker(1e6)
	slow.speed = 1e3
	if slow.pack(&clwire.LaneHeader{Length: 64 << 10}, data, false); slow.skip == 0 && slow.speed < 1e6 {
		t.Error("slow packing goes on")
	}
}

// A peer that was not asked to pack, claims too much, or packs something else, ends the lane.
func TestBadPackedChunks(t *testing.T) {
	h := clwire.LaneHeader{Op: 1, Length: 8192}
	packed := slowPacker(1).pack(&h, text(8192), true)
	t.Run("not asked", func(t *testing.T) {
		a, b := tcpFiles(t)
		defer a.Close()
		l, err := OpenLane(Worker, b, Options{})
		b.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var header [clwire.LaneHeaderBytes]byte
		h.Put(header[:])
		a.Write(header[:])
		if _, err := l.Header(); !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
	})
	for name, length := range map[string]uint32{"a bomb": 8191, "less than it says": 8193,
		"much less": clwire.MaxChunk} {
		t.Run(name, func(t *testing.T) {
			h := h
			h.Length = length
			l := packedLane(t, h, packed)
			p := make([]byte, length+1)
			p[length] = 77
			if err := l.Read(p[:length]); !errors.Is(err, ErrCorrupt) || p[length] != 77 {
				t.Errorf("%v, and behind the chunk %d", err, p[length])
			}
		})
	}
	t.Run("more than there is", func(t *testing.T) {
		l := packedLane(t, h, packed)
		if err := l.Read(make([]byte, 8193)); !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
	})
}

// FuzzUnpack: whatever bytes come for a packed chunk, exactly its length is written, or it is refused.
func FuzzUnpack(f *testing.F) {
	for _, data := range [][]byte{text(9000), field(9001), make([]byte, 5000)} {
		h := clwire.LaneHeader{Length: uint32(len(data))}
		packed := slowPacker(1).pack(&h, data, true)
		f.Add(packed, h.Length, uint8(h.Packing))
		f.Add(packed[:len(packed)/2], h.Length, uint8(h.Packing))
		f.Add(packed, h.Length-1, uint8(h.Packing))
	}
	f.Fuzz(func(t *testing.T, packed []byte, length uint32, packing uint8) {
		h := clwire.LaneHeader{Length: length, Packing: clwire.Packing(packing), Packed: uint32(len(packed))}
		var b [clwire.LaneHeaderBytes]byte
		if h.Packing == clwire.Plain || h.Packing > clwire.GreatestPacking || len(packed) > clwire.MaxChunk {
			return
		}
		h.Put(b[:])
		h, err := clwire.ParseLaneHeader(b[:])
		if err != nil {
			return
		}
		u := unpacker{now: h, wire: packed}
		p := bytes.Repeat([]byte{0xa5}, int(h.Length)+64)
		if err := u.unpack(p[:h.Length]); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		if !bytes.Equal(p[h.Length:], bytes.Repeat([]byte{0xa5}, 64)) {
			t.Fatal("bytes behind the chunk were written")
		}
	})
}

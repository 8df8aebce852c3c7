package clwire

import (
	"fmt"
	"testing"
)

// BenchmarkCodec encodes and decodes the records that travel most often, into memory that is there.
func BenchmarkCodec(b *testing.B) {
	own := Cmd{Queue: 2, Event: 77}
	for _, m := range []Message{
		&NDRange{Cmd: own, Kernel: 6, Dims: 2, HasLocal: true, Global: [3]uint64{64, 32, 1}, Local: [3]uint64{8, 8, 1},
			Args: []Arg{{Index: 0, Kind: ArgMem, Data: le.AppendUint64(nil, 3)},
				{Index: 1, Kind: ArgBytes, Data: []byte{1, 2, 3, 4}}}},
		&WriteInline{Cmd: own, Buffer: 3, Offset: 16, Data: []byte("data")},
		&Transfer{Cmd: own, Direction: FromBuffer, Buffer: 3, Segment: 9, SegmentOffset: 4096, Offset: 5, Size: 6},
		&Copy{Cmd: cmd, Src: 3, Dst: 4, SrcOffset: 1, DstOffset: 2, Size: 3},
		&Finish{Queue: 2},
		&Events{Ends: []EventEnd{{Event: 77}, {Event: 78, HasProfile: true, Profile: Profile{1, 2, 3, 4, 5}}}},
		&Reply{Data: []byte("text")},
		&HostReady{Op: 12},
	} {
		full, into := m.Append(nil), fresh(m)
		buf := make([]byte, 0, len(full))
		b.Run(fmt.Sprintf("record=%v/way=encode", m.Type()), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.Append(buf)
			}
		})
		b.Run(fmt.Sprintf("record=%v/way=decode", m.Type()), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := into.Decode(full); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

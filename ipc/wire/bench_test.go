package wire

import (
	"fmt"
	"reflect"
	"testing"

	"tendril/store/object"
)

// BenchmarkCodec encodes and decodes the payloads that travel most often, into memory that is there.
func BenchmarkCodec(b *testing.B) {
	id, ref := object.ID{0: 1, 15: 16}, object.Ref{Segment: 7, SegmentBytes: 1 << 26, Offset: 64}
	get := GetReply{ID: id, Ref: ref, SizeBytes: 99, Class: object.Ephemeral, Meta: []byte("meta")}
	for _, m := range []message{
		&CreateRequest{SizeBytes: 100, Class: object.Ephemeral, Meta: []byte("meta")},
		&CreateReply{ID: id, Ref: ref},
		&SealRequest{ID: id},
		&GetRequest{ID: id},
		&get,
		&IDMessage{ID: id},
		&StreamPushRequest{Stream: 3, ID: id, Seal: true, WaitMS: WaitForEver},
		&StreamPopReply{Number: 77, GetReply: get},
	} {
		full, into := m.Append(nil), fresh(m)
		buf := make([]byte, 0, len(full))
		name := reflect.TypeOf(m).Elem().Name()
		b.Run(fmt.Sprintf("payload=%s/way=encode", name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.Append(buf)
			}
		})
		b.Run(fmt.Sprintf("payload=%s/way=decode", name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := into.Decode(full); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

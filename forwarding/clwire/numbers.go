package clwire

import "fmt"

//go:generate go run ../../tools/wiregen -numbers numbers.go

// Type numbers a record. Append only; see PROTOCOL.md.
type Type uint16

// The records, and what their payloads hold, as docs/design/codecs.md writes it (go generate).
const (
	// Client to worker.
	TypePad              Type = 0
	TypeHello            Type = 1   // u32 version spinMicros, str16 program
	TypeCreateContext    Type = 2   // u64 id, u16 × u32 devices
	TypeCreateQueue      Type = 3   // u64 id context, u32 device, u64 properties
	TypeAddSegment       Type = 4   // u64 id bytes
	TypeDropSegment      Type = 5   // u64 id
	TypeCreateBuffer     Type = 6   // u64 id context flags size segment offset parent
	TypeRelease          Type = 7   // u64 id
	TypeBlob             Type = 8   // u64 id total offset, bytes32 data
	TypeCreateProgram    Type = 9   // u64 id context, u8 kind, u64 blob, u16 × (u32 device, u64 bytes) binaries
	TypeBuildProgram     Type = 10  // u64 program, u16 × u32 devices, bytes32 options, u64 files
	TypeCreateKernel     Type = 11  // u64 id program, str16 name
	TypeNDRange          Type = 12  // Cmd, u64 kernel, u8 dims, bits hasOffset hasLocal, dims × u64 global, if …
	TypeSetArg           Type = 13  // u64 kernel, Arg
	TypeCopy             Type = 14  // Cmd, u64 src dst srcOffset dstOffset size
	TypeCopyRect         Type = 15  // Cmd, u64 src dst, 3 × u64 srcOrigin dstOrigin region, u64 srcRow srcSlice …
	TypeFill             Type = 16  // Cmd, u64 buffer offset size, bytes32 pattern
	TypeWriteInline      Type = 17  // Cmd, u64 buffer offset, bytes32 data
	TypeTransfer         Type = 18  // Cmd, u8 direction, u64 buffer segment segmentOffset, bool rect, unless rect …
	TypeHost             Type = 19  // Cmd, u64 op
	TypeHostDone         Type = 20  // u64 op, i32 status
	TypeMarker           Type = 21  // Cmd
	TypeBarrier          Type = 22  // Cmd
	TypeUserEvent        Type = 23  // u64 id
	TypeSetUserEvent     Type = 24  // u64 id, i32 status
	TypeFlush            Type = 25  // u64 queue
	TypeFinish           Type = 26  // u64 queue
	TypeWait             Type = 27  // u16 × u64 events
	TypeWatch            Type = 28  // u64 event, i32 level
	TypeQuery            Type = 29  // u8 kind, u64 object, u32 device param, bytes32 input
	TypeBulkWrite        Type = 30  // Cmd, u64 op buffer, Shape
	TypeBulkRead         Type = 31  // Cmd, u64 op, bool inline, u64 buffer, Shape
	TypeBulkBytes        Type = 32  // chunk
	TypeCompileProgram   Type = 48  // BuildProgram, u16 × (u64 program, str16 name) headers
	TypeLinkProgram      Type = 49  // u64 id context, u16 × u32 devices, bytes32 options, u16 × u64 programs
	TypeFiles            Type = 50  // u64 set blob
	TypeFileData         Type = 51  // u64 set blob
	TypeCreateSubDevices Type = 52  // u32 device first room, u16 × u64 properties
	TypeReleaseSubDevice Type = 53  // u32 device
	TypeSpecConstant     Type = 54  // u64 program, u32 id, bytes32 value
	TypeGraph            Type = 55  // u64 id blob
	TypeReplay           Type = 56  // Cmd, u64 graph first
	TypeTimeLimits       Type = 57  // u64 kernelNanos buildNanos
	TypeContentSize      Type = 58  // u64 buffer size
	TypeCreateImage      Type = 60  // u64 id context flags, u32 order dataType kind, u64 width height depth …
	TypeCreateSampler    Type = 61  // u64 id context, bool normalized, u32 addressing filter
	TypeImageFormats     Type = 62  // u64 context flags, u32 kind
	TypeCopyImage        Type = 63  // Cmd, u64 src dst, 3 × u64 srcOrigin dstOrigin region
	TypeCopyImageBuffer  Type = 64  // Cmd, u8 direction, u64 image buffer offset, 3 × u64 origin region
	TypeFillImage        Type = 65  // Cmd, u64 image, 16 bytes color, 3 × u64 origin region
	TypeWriteImageInline Type = 66  // Cmd, u64 image, 3 × u64 origin region, bytes32 data
	TypeClockSync        Type = 72  // nothing
	TypeTraceOn          Type = 73  // u32 process worker, bool shared
	TypeTraceFlush       Type = 74  // nothing
	TypeAck              Type = 76  // u8 lane, u64 received
	TypeLeave            Type = 77  // nothing
	TypePulse            Type = 78  // u32 everyMillis paceMillis, u8 lanes, lanes × (u64 sent received, u32 …
	TypePeerOpen         Type = 80  // nothing
	TypePeerExpect       Type = 81  // u64 link, bits answers plaintext packed, u8 lanes, 32 bytes peerSHA
	TypePeerPush         Type = 82  // peerRange, PeerContent content
	TypePeerPull         Type = 83  // peerRange
	TypePeerSignal       Type = 84  // u64 link event there
	TypePeerEvent        Type = 85  // u64 link id
	TypePeerClose        Type = 86  // u64 link
	TypePeerWord         Type = 87  // u32 kind, i32 status, u64 number
	TypePeerBytes        Type = 88  // chunk
	TypeTakesPacked      Type = 90  // u8 greatest
	TypeCreateSVM        Type = 91  // u64 id context flags size segment address, u32 align
	TypeSVMPointers      Type = 92  // u64 kernel, u16 × u64 objects pointers
	TypeProtectSegment   Type = 163 // u64 id, bool writable

	// Worker to client.
	TypeReply      Type = 129 // i32 status, rest data
	TypeEvents     Type = 130 // u16 × EventEnd ends
	TypeHostReady  Type = 131 // u64 op, i32 status
	TypeFault      Type = 132 // u64 object queue, i32 status, str16 text
	TypePrint      Type = 133 // rest data
	TypeBulkData   Type = 134 // chunk
	TypeBulkDone   Type = 135 // u64 op, i32 status
	TypePeerState  Type = 140 // u64 link, bool up, str16 text
	TypeTraceData  Type = 156 // u32 lost, u16 × (u64 queue, u32 seq, u16 command deviceNumber, i32 status, …
	TypeBulkLength Type = 157 // u64 op bytes
)

// String returns the record's name in PROTOCOL.md.
func (t Type) String() string {
	if s, ok := typeNames[t]; ok {
		return s
	}
	return fmt.Sprintf("type %d", uint16(t))
}

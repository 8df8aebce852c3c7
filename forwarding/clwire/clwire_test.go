package clwire

import (
	"bufio"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"tendril/forwarding/cl"
)

var update = flag.Bool("update", false,
	"write testdata/golden.txt anew (a change of layout needs a new protocol version)")

var cmd = Cmd{Queue: 2, Event: 77, Wait: []uint64{5, 6}}

// samples holds one filled message of every type; the golden file its bytes.
var samples = []Message{
	&Hello{Version: 1, SpinMicros: 60, Program: "clinfo"},
	&CreateContext{ID: 1, Devices: []uint32{0, 3}},
	&CreateQueue{ID: 2, Context: 1, Device: 3, Properties: 2},
	&AddSegment{ID: 9, Bytes: 1 << 24},
	&DropSegment{ID: 9},
	&CreateBuffer{ID: 3, Context: 1, Flags: 1, Size: 4096, Segment: 9, Offset: 128, Parent: 0},
	&Release{ID: 3},
	&Blob{ID: 4, Total: 10, Offset: 6, Data: []byte("void")},
	&CreateProgram{ID: 5, Context: 1, Kind: ProgramBinaries, Blob: 4, Binaries: []DeviceBytes{{0, 7}, {3, 3}}},
	&BuildProgram{Program: 5, Devices: []uint32{0}, Options: []byte("-DN=4"), Files: 11},
	&CreateKernel{ID: 6, Program: 5, Name: "blur"},
	&NDRange{Cmd: cmd, Kernel: 6, Dims: 2, HasLocal: true, Global: [3]uint64{64, 32, 1}, Local: [3]uint64{8, 8, 1},
		Args: []Arg{{Index: 0, Kind: ArgMem, Data: le.AppendUint64(nil, 3)},
			{Index: 1, Kind: ArgBytes, Data: []byte{1, 2, 3, 4}}}},
	&SetArg{Kernel: 6, Arg: Arg{Index: 2, Kind: ArgLocal, Data: le.AppendUint64(nil, 256)}},
	&Copy{Cmd: cmd, Src: 3, Dst: 4, SrcOffset: 1, DstOffset: 2, Size: 3},
	&CopyRect{Cmd: cmd, Src: 3, Dst: 4, SrcOrigin: [3]uint64{1, 2, 3}, DstOrigin: [3]uint64{4, 5, 6},
		Region: [3]uint64{7, 8, 9}, SrcRow: 10, SrcSlice: 100, DstRow: 11, DstSlice: 110},
	&Fill{Cmd: cmd, Buffer: 3, Offset: 16, Size: 64, Pattern: []byte{0xde, 0xad}},
	&WriteInline{Cmd: cmd, Buffer: 3, Offset: 16, Data: []byte("data")},
	&Transfer{Cmd: cmd, Direction: FromBuffer, Buffer: 3, Segment: 9, SegmentOffset: 4096, Offset: 5, Size: 6},
	&Transfer{Cmd: cmd, Direction: ToBuffer, Buffer: 3, Segment: 9, SegmentOffset: 4096, Rect: true,
		Origin: [3]uint64{1, 2, 3}, Region: [3]uint64{4, 5, 6}, RowPitch: 7, SlicePitch: 8},
	&Host{Cmd: cmd, Op: 12},
	&HostDone{Op: 12, Status: -5},
	&Marker{cmd},
	&Barrier{cmd},
	&UserEvent{ID: 8},
	&SetUserEvent{ID: 8, Status: -7},
	&Flush{Queue: 2},
	&Finish{Queue: 2},
	&Wait{Events: []uint64{77, 78}},
	&Watch{Event: 77, Level: 1},
	&Query{Kind: QueryKernelArg, Object: 6, Device: 0, Param: cl.KERNEL_ARG_ADDRESS_QUALIFIER,
		Input: []byte{1, 0, 0, 0}},
	&CreateImage{ID: 11, Context: 1, Flags: 4, Order: cl.RGBA, DataType: cl.UNORM_INT8, Kind: cl.MEM_OBJECT_IMAGE2D,
		Width: 64, Height: 32, Depth: 1, ArraySize: 2, RowPitch: 256, SlicePitch: 8192, Parent: 3},
	&CreateSampler{ID: 12, Context: 1, Normalized: true, Addressing: cl.ADDRESS_REPEAT, Filter: cl.FILTER_LINEAR},
	&ImageFormats{Context: 1, Flags: 1, Kind: cl.MEM_OBJECT_IMAGE2D},
	&CopyImage{Cmd: cmd, Src: 11, Dst: 13, SrcOrigin: [3]uint64{1, 2, 3}, DstOrigin: [3]uint64{4, 5, 6},
		Region: [3]uint64{7, 8, 9}},
	&CopyImageBuffer{Cmd: cmd, Direction: ImageToBuffer, Image: 11, Buffer: 3, Offset: 16, Origin: [3]uint64{1, 2, 3},
		Region: [3]uint64{4, 5, 6}},
	&FillImage{Cmd: cmd, Image: 11, Color: [16]byte{1, 2, 3, 4, 15: 16}, Origin: [3]uint64{1, 2, 3},
		Region: [3]uint64{4, 5, 6}},
	&WriteImageInline{Cmd: cmd, Image: 11, Origin: [3]uint64{4, 2, 3}, Region: [3]uint64{4, 1, 1},
		Data: []byte("data")},
	&Graph{ID: 14, Blob: 4},
	&Replay{Cmd: cmd, Graph: 14, First: 100},
	&ContentSize{Buffer: 7, Size: 8},
	&BulkLength{Op: 9, Bytes: 1 << 33},
	&TimeLimits{KernelNanos: 1 << 40, BuildNanos: 3},
	&Reply{Status: -54, Data: []byte("text")},
	&Events{Ends: []EventEnd{{Event: 77, Status: -14}, {Event: 78, HasProfile: true, Profile: Profile{1, 2, 3, 4, 5}}}},
	&HostReady{Op: 12, Status: -14},
	&Fault{Object: 3, Queue: 2, Status: -4, Text: "no memory"},
	&Print{Data: []byte("hello\n")},
	&BulkWrite{Cmd: cmd, Op: 12, Buffer: 3, Shape: Shape{Offset: 5, Size: 6}},
	&BulkWrite{Cmd: cmd, Op: 12, Buffer: 3,
		Shape: Shape{Rect: true, Origin: [3]uint64{1, 2, 3}, Region: [3]uint64{4, 5, 6}, RowPitch: 7, SlicePitch: 8}},
	&BulkRead{Cmd: cmd, Op: 12, Inline: true, Buffer: 3, Shape: Shape{Offset: 5, Size: 6}},
	NewBulkBytes(12, 4096, []byte("bytes")),
	NewBulkData(12, 4096, []byte("data")),
	&BulkDone{Op: 12, Status: -14},
	&CompileProgram{BuildProgram: BuildProgram{Program: 5, Devices: []uint32{0}, Options: []byte("-DN=4"), Files: 11},
		Headers: []EmbeddedHeader{{6, "a/b.h"}, {7, "c.h"}}},
	&LinkProgram{ID: 13, Context: 1, Devices: []uint32{0}, Options: []byte("-create-library"),
		Programs: []uint64{5, 6}},
	&Files{Set: 11, Blob: 4},
	&FileData{Set: 11, Blob: 4},
	&CreateSubDevices{Device: 3, First: SubDeviceBase, Room: 2,
		Properties: []uint64{cl.DEVICE_PARTITION_EQUALLY, 1, 0}},
	&ReleaseSubDevice{Device: SubDeviceBase},
	&ProtectSegment{ID: 9, Writable: true},
	&SpecConstant{Program: 5, ID: 7, Value: []byte{1, 2, 3, 4}},
	&Ack{Lane: 2, Received: 1 << 40},
	&Leave{},
	&Pulse{EveryMillis: 2500, PaceMillis: 800, Lanes: 2, Channels: [MaxLanes]ChannelState{{Sent: 1 << 33, Received: 77,
		QuietMillis: 3}, {Sent: 5, Received: 1 << 40, QuietMillis: 1 << 20}}},
	&ClockSync{},
	&TraceOn{Process: 4711, Worker: 2, Shared: true},
	&TraceFlush{},
	&TraceData{Lost: 7, Commands: []Traced{
		{Queue: 2, Seq: 9, Command: TypeNDRange, DeviceNumber: 1, Profiled: true, Taken: 10, Begun: 20, Given: 30,
			Seen: 90, Device: [4]int64{1020, 1030, 1040, 1080}},
		{Queue: 2, Seq: 10, Command: TypeMarker, Status: -14, Taken: 11, Seen: 91},
	}},
	&PeerOpen{},
	&PeerExpect{Link: 21, Answers: true, Packed: true, Lanes: 3, PeerSHA: [32]byte{0: 1, 31: 2}},
	&PeerPush{peerRange{21, 77, 3, 4096, 8192, []uint64{5, 6}}, PeerContent{Size: 8, Origin: 512, Wait: []uint64{9}}},
	NewPeerPull(21, 77, 4, 4096, 8192, nil),
	&PeerSignal{Link: 21, Event: 5, There: 78},
	&PeerEvent{Link: 21, ID: 78},
	&PeerClose{Link: 21},
	&TakesPacked{Greatest: PackedWords},
	&PeerState{Link: 21, Up: true, Text: "why"},
	&PeerWord{Kind: PeerFailed, Status: -5, Number: 77},
	NewPeerBytes(77, 32768, []byte{1, 2, 3}),
	&CreateSVM{ID: 31, Context: 1, Flags: 1 << 10, Size: 4096, Segment: 9, Address: 0x2000_0000_1000, Align: 64},
	&SVMPointers{Kernel: 6, Objects: []uint64{31, 32}, Pointers: []uint64{0x2000_0000_1008, 0x2000_0010_0000}},
	&SetArg{Kernel: 6, Arg: Arg{Index: 2, Kind: ArgSVM,
		Data: []byte{31, 0, 0, 0, 0, 0, 0, 0, 8, 16, 0, 0, 0, 32, 0, 0}}},
}

const golden = "testdata/golden.txt"

func goldenLine(m Message) string {
	return fmt.Sprintf("%d %v %s", uint16(m.Type()), m.Type(), hex.EncodeToString(m.Append(nil)))
}

func TestGoldenBytes(t *testing.T) {
	if *update {
		var b strings.Builder
		for _, m := range samples {
			b.WriteString(goldenLine(m) + "\n")
		}
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for _, m := range samples {
		if !lines.Scan() {
			t.Fatalf("%s ends before %v", golden, m.Type())
		}
		if got := goldenLine(m); got != lines.Text() {
			t.Errorf("layout changed:\n got %s\nwant %s", got, lines.Text())
		}
	}
}

func TestEveryTypeHasASample(t *testing.T) {
	seen := map[Type]bool{TypePad: true}
	for _, m := range samples {
		seen[m.Type()] = true
	}
	for typ, name := range typeNames {
		if !seen[typ] {
			t.Errorf("%s has no sample", name)
		}
	}
}

func fresh(m Message) Message { return reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message) }

func TestRoundTrip(t *testing.T) {
	for _, m := range samples {
		got := fresh(m)
		if err := got.Decode(m.Append(nil)); err != nil {
			t.Errorf("%v: %v", m.Type(), err)
			continue
		}
		want := fmt.Sprintf("%+v", m)
		if n, ok := got.(*NDRange); ok { // unused dimensions come out as 1
			n.Offset = m.(*NDRange).Offset
			n.Local = m.(*NDRange).Local
		}
		if s := fmt.Sprintf("%+v", got); s != want {
			t.Errorf("%v:\n got %s\nwant %s", m.Type(), s, want)
		}
	}
}

// A decoder that reuses its slices must not show what an earlier message left.
func TestDecodeReuses(t *testing.T) {
	var m NDRange
	long := samples[11].Append(nil)
	if err := m.Decode(long); err != nil {
		t.Fatal(err)
	}
	short := (&NDRange{Cmd: Cmd{Queue: 1}, Kernel: 2, Dims: 1, Global: [3]uint64{5, 1, 1}}).Append(nil)
	if err := m.Decode(short); err != nil {
		t.Fatal(err)
	}
	if len(m.Wait) != 0 || len(m.Args) != 0 || m.HasLocal || m.Event != 0 {
		t.Errorf("left over: %+v", m)
	}
	allocs := testing.AllocsPerRun(100, func() {
		if err := m.Decode(long); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations a launch", allocs)
	}
}

func TestEveryTruncationIsRefused(t *testing.T) {
	for _, m := range samples {
		if m.Type() == TypePrint {
			continue // any bytes are a Print
		}
		full := m.Append(nil)
		for n := range full {
			err := fresh(m).Decode(full[:n])
			if m.Type() == TypeReply && n >= 4 {
				continue // a Reply's data has no length of its own
			}
			if !errors.Is(err, ErrRecord) {
				t.Errorf("%v cut to %d of %d bytes: %v", m.Type(), n, len(full), err)
			}
		}
		if m.Type() == TypeReply {
			continue
		}
		if err := fresh(m).Decode(append(full, 0)); !errors.Is(err, ErrRecord) {
			t.Errorf("%v with a byte too many: %v", m.Type(), err)
		}
	}
}

func TestBadFields(t *testing.T) {
	for name, m := range map[string]Message{
		"dimensions 4":               &NDRange{Dims: 3, Global: [3]uint64{1, 1, 1}},
		"user event status 1":        &SetUserEvent{ID: 1, Status: 1},
		"watch level 3":              &Watch{Event: 1, Level: 3},
		"blob past its total":        &Blob{Total: 3, Offset: 2, Data: []byte("ab")},
		"blob too large":             &Blob{Total: MaxBlob + 1},
		"pattern too long":           &Fill{Pattern: make([]byte, MaxPattern+1)},
		"program kind 0":             &CreateProgram{},
		"memory argument of 4 bytes": &SetArg{Arg: Arg{Kind: ArgMem, Data: []byte{1, 2, 3, 4}}},
		"argument kind 9":            &SetArg{Arg: Arg{Kind: 9, Data: make([]byte, 8)}},
		"direction 2":                &Transfer{Direction: 2},
		"image direction 2":          &CopyImageBuffer{Direction: 2},
	} {
		b := m.Append(nil)
		if name == "dimensions 4" {
			b[8+8+2+8] = 4
		}
		if err := fresh(m).Decode(b); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestImageFacts(t *testing.T) {
	want := ImageFacts{ElementBytes: 4, RowPitch: 256, SlicePitch: 8192, MemBytes: 1 << 40}
	b := want.Append(nil)
	var got ImageFacts
	if err := got.Decode(b); err != nil || got != want {
		t.Errorf("%+v became %+v, %v", want, got, err)
	}
	for n := range b {
		if err := got.Decode(b[:n]); !errors.Is(err, ErrRecord) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
}

func TestHeader(t *testing.T) {
	var b [HeaderBytes]byte
	want := Header{Length: 7, Type: TypeWait, Flags: FlagUrgent, Request: 1 << 60}
	want.Put(b[:])
	if got, err := ParseHeader(b[:]); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	Header{Length: MaxRecord + 1}.Put(b[:])
	if _, err := ParseHeader(b[:]); !errors.Is(err, ErrRecord) {
		t.Errorf("too long: %v", err)
	}
}

// FuzzDecode feeds every decoder; what one accepts must survive a round trip.
func FuzzDecode(f *testing.F) {
	for _, m := range samples {
		full := m.Append(nil)
		for _, n := range []int{len(full), len(full) / 2, min(len(full), 1)} {
			f.Add(uint16(m.Type()), full[:n])
		}
	}
	byType := map[Type]Message{}
	for _, m := range samples {
		byType[m.Type()] = m
	}
	f.Fuzz(func(t *testing.T, typ uint16, b []byte) {
		sample, ok := byType[Type(typ)]
		if !ok || len(b) > MaxRecord {
			return
		}
		m := fresh(sample)
		if m.Decode(b) != nil {
			return
		}
		again := fresh(sample)
		if err := again.Decode(m.Append(nil)); err != nil {
			t.Fatalf("%v does not survive: %v", sample.Type(), err)
		}
	})
}

func TestLaneHeader(t *testing.T) {
	for _, h := range []LaneHeader{{Op: 12, Offset: 1 << 40, Length: MaxChunk}, {Op: 1, Length: 1, Skipped: true},
		{Op: 3, Length: MaxChunk, Packing: PackedS2, Packed: MaxChunk - 1},
		{Op: 3, Length: 2, Packing: PackedWords, Packed: 1}} {
		b := make([]byte, LaneHeaderBytes)
		h.Put(b)
		if got, err := ParseLaneHeader(b); err != nil || got != h {
			t.Errorf("%+v became %+v, %v", h, got, err)
		}
	}
	b := make([]byte, LaneHeaderBytes)
	LaneHeader{Op: 12, Offset: 0x0102030405060708, Length: 0x30201, Skipped: true}.Put(b)
	if got := hex.EncodeToString(b); got != "0c00000000000000080706050403020101020300"+"01000000" {
		t.Errorf("layout changed: %s", got)
	}
	LaneHeader{Op: 12, Length: 0x30201, Packing: PackedWords, Packed: 0x10203}.Put(b)
	if got := hex.EncodeToString(b[16:]); got != "01020300"+"04030201" {
		t.Errorf("layout of a packed chunk changed: %s", got)
	}
	for _, bad := range []LaneHeader{{Length: 0}, {Length: MaxChunk + 1}, {Length: 9, Packed: 1},
		{Length: 9, Packing: PackedS2}, {Length: 9, Packing: PackedS2, Packed: 9},
		{Length: 9, Packing: packings, Packed: 3}, {Length: 9, Skipped: true, Packing: PackedS2, Packed: 3}} {
		bad.Put(b)
		if _, err := ParseLaneHeader(b); !errors.Is(err, ErrRecord) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	b[20], b[16] = 16, 1
	if _, err := ParseLaneHeader(b); !errors.Is(err, ErrRecord) {
		t.Error("unknown flags were taken")
	}
}

// FuzzLaneHeader: what a lane's peer sends before a chunk is refused, or has a length within the limit and survives.
func FuzzLaneHeader(f *testing.F) {
	for _, h := range []LaneHeader{{Op: 1, Length: 1}, {Op: 1 << 63, Offset: 1 << 40, Length: MaxChunk},
		{Op: 9, Length: 7, Skipped: true},
		{Op: 9, Length: 7, Packing: PackedS2, Packed: 6}, {Length: MaxChunk + 1}, {}} {
		b := make([]byte, LaneHeaderBytes)
		h.Put(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < LaneHeaderBytes {
			return
		}
		h, err := ParseLaneHeader(b)
		if err != nil {
			if !errors.Is(err, ErrRecord) {
				t.Fatalf("%v", err)
			}
			return
		}
		if h.Length == 0 || h.Length > MaxChunk {
			t.Fatalf("a chunk of %d bytes", h.Length)
		}
		again := make([]byte, LaneHeaderBytes)
		if h.Put(again); string(again) != string(b[:LaneHeaderBytes]) {
			t.Fatalf("%x became %x", b[:LaneHeaderBytes], again)
		}
	})
}

package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"tendril/store/object"
)

var update = flag.Bool("update", false, "write testdata anew: only for a new message")

type message interface {
	Append([]byte) []byte
	Decode([]byte) error
}

// messages is one example of each payload; the golden bytes in testdata stand for the layout.
func messages() []message {
	id := object.ID{0: 1, 1: 2, 15: 16}
	hash := [32]byte{0: 3, 31: 4}
	ref := object.Ref{Segment: 7, SegmentBytes: 1 << 26, Offset: 64}
	return []message{
		&HelloRequest{Magic: Magic, Lowest: 1, Highest: 3, Program: "prog"},
		&HelloReply{Version: 1, DaemonVersion: "v0", Incarnation: id, Tenant: "uid:0", DaemonPID: 42,
			CapacityBytes: 1 << 34},
		&CreateRequest{SizeBytes: 100, Class: object.Named, Flags: CreateOwn, Name: "n", Meta: []byte(`{}`)},
		&CreateReply{ID: id, Ref: ref},
		&SealRequest{ID: id, Strict: true},
		&GetRequest{ID: id, Name: "name", WaitMS: 1500},
		&GetReply{ID: id, Ref: ref, SizeBytes: 99, Class: object.Ephemeral, Meta: []byte("meta")},
		&IDMessage{ID: id},
		&NameMessage{ID: id, Name: "ü"},
		&ListRequest{Prefix: "p", All: true},
		&BindRequest{ID: id, Name: "n", Replace: true},
		&Number{N: 1<<63 + 5},
		&SweepReply{Segments: []uint64{1, 1 << 40}},
		&ErrorReply{Code: object.ErrFull.Code(), Text: "full"},
		&OpenSessionRequest{LibraryVersion: "v1", Options: []byte(`{"selector":""}`)},
		&KeepSessionRequest{Millis: 60000, PulseMillis: 2500},
		&KeepSessionReply{Secret: [32]byte{1, 31: 2}, Millis: 30000},
		&ResumeSessionRequest{Session: 3, Secret: [32]byte{1, 31: 2}},
		&ResumeWorkerRequest{Worker: 4, Lanes: 5}, &ResumeWorkerReply{Tickets: [][32]byte{{1}, {2}}},
		&OpenSessionReply{Session: 3, Snapshot: []byte(`{}`)},
		&OpenWorkerRequest{Platform: 2},
		&OpenWorkerReply{Worker: 5, RingBytes: 1 << 20},
		&AllocSegmentReply{Segment: 8, Bytes: 4096},
		&ReserveDeviceRequest{Worker: 5, Bytes: 1 << 36},
		&PublishSegmentRequest{Segment: 8, SizeBytes: 4000, Class: object.Named, Replace: true, Name: "r",
			Meta: []byte("m")},
		&CreateTokenRequest{Role: 2, LifeSeconds: 86400, Once: true, Tenant: "lab"},
		&RevokeTokenRequest{ID: id, Certificates: true},
		&RevokeCertificatesRequest{Serial: id, Tenant: "lab", Node: "a", Reason: "stolen"},
		&ChangeTenantRequest{Name: "lab", Change: TenantMap, Anyway: true, Whole: true, Kind: 1, Fields: 31,
			Memory: 1 << 30, Disk: 1 << 40, GPU: 1 << 35, Devices: 4, Objects: 1000, Member: "ann", Node: "a"},
		&AuditRequest{Since: 1 << 60, Limit: 100, Tenant: "lab", Cursor: "{}"},
		&TextReply{Text: "text"},
		&EnrollRequest{Token: id, SecretHash: hash, Name: "laptop", Request: []byte("der")},
		&DERMessage{DER: []byte("der")},
		&AttachRequest{Worker: 3, Attempt: 9, ID: object.ID{1}, Name: "n"},
		&AttachReply{ID: object.ID{2}, Segment: 1<<63 | 5, Offset: 4096, SizeBytes: 77},
		&OpenRemoteWorkerRequest{Platform: 1, ClientSHA256: hash, Lanes: 3, Plaintext: true},
		&OpenRemoteWorkerReply{Worker: 4, WorkerSHA256: hash, Tickets: [][32]byte{hash, {31: 9}}},
		&CreateWithRequest{CreateRequest: CreateRequest{SizeBytes: 5, Class: object.TTL, Name: "n", Meta: []byte("m")},
			TTLMS: 90, Labels: map[string]string{"a": "b", "c": ""}},
		&UpdateRequest{ID: id, Name: "n", Flags: UpdateTTL | UpdateLabels, TTLMS: 7,
			Labels: map[string]string{"k": "v"}},
		&GrantRequest{ID: id, Name: "n", Revoke: true, To: "uid:7"},
		&ListWhereRequest{Prefix: "p", All: true, Shared: true, Labels: map[string]string{"k": "v"}},
		&RenameRequest{From: "a", To: "b", Replace: true},
		&AwaitManyRequest{WaitMS: 9, Wanted: []NameMessage{{ID: id}, {Name: "x"}}},
		&ReadRangeRequest{ID: id, Name: "n", Offset: 1 << 40, Bytes: 77},
		&WatchRequest{Prefix: "p"},
		&OpenIndexReply{SlotsBytes: 8192, LevelBytes: 1 << 17},
		&IndexLevelRequest{Level: 3},
		&StreamOpenRequest{Flags: StreamReads | StreamKeep, Frames: 9, Bytes: 1 << 33, Name: "s"},
		&StreamOpenReply{Stream: 3, Frames: 16, Bytes: 5},
		&StreamPushRequest{Stream: 3, ID: id, Seal: true, WaitMS: WaitForEver, Meta: []byte(`{"t":1}`)},
		&StreamPopRequest{Stream: 3, WaitMS: 250},
		&StreamPopReply{Number: 77,
			GetReply: GetReply{ID: id, Ref: ref, SizeBytes: 99, Class: object.Ephemeral, Meta: []byte("meta")}},
		&StreamEndRequest{Stream: 3, Abort: true},
		&StreamAckRequest{ID: id, Number: 78},
		&FrameAckRequest{Stream: 5, ID: id, Number: 78},
		&StreamUnpopRequest{Stream: 3, ID: id, Number: 77},
		&SealFilledRequest{SealRequest: SealRequest{ID: id, Strict: true}, Despite: true, WaitMS: 77},
		&ComposeRequest{Class: object.TTL, Name: "n", Meta: []byte("m"), TTLMS: 8, Labels: map[string]string{"k": "v"},
			Members: []object.Member{{Name: "a", ID: id}, {Name: "b"}}},
		&ReclaimRequest{Claims: []Claim{{ID: id, Segment: 1 << 40}, {ID: object.ID{9}}}},
		&ReclaimReply{Verdicts: []Verdict{Held, Gone, Moved}},
		&TakeoverRequest{Lowest: 1, Highest: 3},
		&TakeoverReply{Format: 2},
		&WriteRequest{ID: id, Offset: 1 << 33, Data: []byte("data")},
		&PutRequest{Class: object.TTL, Replace: true, Name: "n", Meta: []byte("m"), TTLMS: 90,
			Labels: map[string]string{"a": "b"}, Data: []byte("data")},
		&HoldReply{ID: id, SizeBytes: 99, Class: object.Named, Meta: []byte("meta")},
		&WorkerFateReply{Alive: false, Text: "killed by SIGSEGV"},
		&OfferPeerRequest{Worker: 3, Link: 1 << 33, Lanes: 3, Plaintext: true},
		&OfferPeerReply{Offer: []byte("{}")},
		&DialPeerRequest{Worker: 3, Link: 1 << 33, Offer: []byte("{}")},
		&PairPeersRequest{Workers: [2]uint64{3, 4}, Link: 1 << 33, Lanes: 2},
		&TellPeerRequest{Worker: 3, Link: 1 << 33, Up: true, With: "node b", Text: "why"},
		&ScrubRequest{From: "1f-00@uid:0"},
		&PlaceRequest{ID: id, Name: "weights", Policy: "near b"},
		&ReplicateRequest{ID: id, Name: "weights", Wanted: 3, To: "b", From: "a", Move: true},
		&SetPeerRequest{Authority: hash, Address: "b:7433"},
		&JoinRequest{Token: id, SecretHash: hash, Node: id, Lowest: 1, Highest: 2, Name: "b", Version: "v1",
			Request: []byte("der")},
		&JoinReply{Node: id, Certificate: []byte("der"), AuthorityKey: []byte("key"),
			Nodes: []NodeAddresses{{Node: id, Name: "a", Addresses: "a:7433 10.0.0.1:7433"}}},
		&ProposeRequest{Command: []byte("command")},
		&ProposeReply{Leader: id, Code: object.ErrBusy.Code(), Text: "busy", Epoch: 7, Index: 8},
		&ReadIndexReply{Leader: id, Index: 9},
		&PulseReply{Node: id, Incarnation: id, CapacityBytes: 1 << 33, FreeBytes: 1 << 32, Transfers: 3, LastIndex: 9,
			LogFailed: true},
		&JoinClusterRequest{Address: "a:7433", Token: "tdl_x"},
		&LeaveClusterRequest{Anyway: true},
		&RemoveNodeRequest{Node: "old", Anyway: true},
		&LogEndReply{Term: 7, Index: 1 << 33},
		&TakeDevicesRequest{Lease: id, Count: 2, Wait: true, Token: "token", Selector: "type=gpu"},
		&TakeDevicesReply{Matching: 3, Devices: []NamedDevice{{Key: "aabb"}}, Why: "busy"},
		&KeepDevicesRequest{Lease: id, Devices: []NamedDevice{{Key: "aabb"}, {Key: "ccdd"}}},
		&EndLeaseRequest{Name: "a/3"},
		&AccessReply{Node: id, Authority: []byte("ca"), Certificate: []byte("der"), Key: []byte("key"),
			Nodes: []NodeAddresses{{Node: id, Name: "b", Addresses: "b:7433"}}},
		&RecoverClusterRequest{Do: true},
		&RotateAuthorityRequest{Finish: true, Anyway: true},
		&ListPageRequest{ListWhereRequest: ListWhereRequest{Prefix: "p", All: true,
			Labels: map[string]string{"k": "v"}}, Limit: 7, Cursor: "c"},
		&PageRequest{Prefix: "p", Limit: 7, Cursor: "c"},
		&CreateDeviceRequest{SizeBytes: 5, Device: object.Device{1, 15: 2}, Class: object.TTL, Name: "n",
			Meta: []byte("m"), TTLMS: 90, Labels: map[string]string{"a": "b"}},
		&DeviceReply{ID: id, Device: object.Device{1, 15: 2}, SizeBytes: 99, Bytes: 2 << 20, Class: object.Named,
			Meta: []byte("meta")},
		&CopyRequest{To: id, ToOffset: 1 << 33, FromName: "n", FromOffset: 7, Bytes: 1 << 34},
		&SealDeviceRequest{ID: id, Meta: []byte("meta")},
		&IPCReply{Number: 3, Device: object.Device{1, 15: 2}, SizeBytes: 99, Bytes: 2 << 20,
			Handle: [64]byte{1, 63: 2}},
		&PageReply{Next: "n", Items: []byte("[]")},
	}
}

func fresh(m message) message { return reflect.New(reflect.TypeOf(m).Elem()).Interface().(message) }

func TestGoldenBytes(t *testing.T) {
	for _, m := range messages() {
		name := reflect.TypeOf(m).Elem().Name()
		path := filepath.Join("testdata", name+".hex")
		got := m.Append(nil)
		if *update {
			if err := os.WriteFile(path, []byte(hex.EncodeToString(got)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(string(bytes.TrimSpace(text)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: got %x, golden %x, %v", name, got, want, err)
		}
		back := fresh(m)
		if err := back.Decode(want); err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%s: decoded %+v, %v", name, back, err)
		}
	}
}

func TestEveryTruncationAndExtensionIsRefused(t *testing.T) {
	for _, m := range messages() {
		whole := m.Append(nil)
		for n := range len(whole) {
			if err := fresh(m).Decode(whole[:n]); !errors.Is(err, object.ErrProtocol) {
				t.Errorf("%T cut to %d bytes: %v", m, n, err)
			}
		}
		if err := fresh(m).Decode(append(whole, 0)); !errors.Is(err, object.ErrProtocol) {
			t.Errorf("%T with a byte too many: %v", m, err)
		}
	}
}

func TestHostileLengths(t *testing.T) {
	huge := []byte{0xff, 0xff, 0xff, 0xff}
	if err := new(OpenSessionRequest).Decode(append([]byte{0, 0}, huge...)); !errors.Is(err, object.ErrProtocol) {
		t.Errorf("%v", err)
	}
	if err := new(SweepReply).Decode(huge); !errors.Is(err, object.ErrProtocol) {
		t.Errorf("%v", err)
	}
	if err := new(SealRequest).Decode(append(make([]byte, 16), 2)); !errors.Is(err, object.ErrProtocol) {
		t.Errorf("a boolean of 2: %v", err)
	}
}

// FuzzDecode runs every decoder: the first byte chooses. What decodes must encode to the same bytes.
func FuzzDecode(f *testing.F) {
	for i, m := range messages() {
		whole := append([]byte{byte(i)}, m.Append(nil)...)
		for n := 1; n <= len(whole); n++ {
			f.Add(whole[:n])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		all := messages()
		if len(b) == 0 {
			return
		}
		m := fresh(all[int(b[0])%len(all)])
		if m.Decode(b[1:]) != nil {
			return
		}
		if again := m.Append(nil); !bytes.Equal(again, b[1:]) {
			t.Errorf("%T: %x decodes and encodes to %x", m, b[1:], again)
		}
	})
}

func TestTypeNames(t *testing.T) {
	for typ, want := range map[Type]string{Get: "Get", Get | ReplyBit: "Get reply", Error: "Error",
		999: "message 999"} {
		if fmt.Sprint(typ) != want {
			t.Errorf("%d is %q, want %q", uint16(typ), typ, want)
		}
	}
}

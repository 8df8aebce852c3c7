package session_test

import (
	"context"
	"errors"
	"testing"

	"tendril/client"
	"tendril/client/session"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/answers"
)

// Sessions of real daemons are the tests' of package client, forwarding/session/node and tools/e2e. Here is what only a
// daemon of another release says.

func calling(call func(ctx context.Context, s session.Session) error) func(socket string) error {
	return answers.Calling(dial, func(ctx context.Context, c *client.Conn) error { return call(ctx, session.Of(c)) })
}

func dial(ctx context.Context, socket string) (*client.Conn, error) {
	return client.Dial(ctx, client.Options{Socket: socket})
}

// asking is calling for what answers something.
func asking[T any](call func(s session.Session, ctx context.Context) (T, error)) answers.Call {
	return answers.Call{To: calling(func(ctx context.Context, s session.Session) error {
		_, err := call(s, ctx)
		return err
	})}
}

// doing is calling for what answers nothing.
func doing(call func(s session.Session, ctx context.Context) error) answers.Call {
	return answers.Call{To: calling(func(ctx context.Context, s session.Session) error { return call(s, ctx) }),
		Empty: true}
}

// TestAnswers: neither a refusal nor nonsense is taken for an answer.
func TestAnswers(t *testing.T) {
	answers.Try(t, map[string]answers.Call{
		"Open": asking(func(s session.Session, ctx context.Context) (any, error) {
			_, snapshot, err := s.Open(ctx, "v", nil)
			return snapshot, err
		}),
		"OpenWorker": asking(func(s session.Session, ctx context.Context) (any, error) { return s.OpenWorker(ctx, 0) }),
		"OpenRemoteWorker": asking(func(s session.Session, ctx context.Context) (any, error) {
			return s.OpenRemoteWorker(ctx, 0, [32]byte{}, 2, false, false)
		}),
		"ResumeWorker": asking(func(s session.Session, ctx context.Context) (any, error) {
			return s.ResumeWorker(ctx, 1, []int{0})
		}),
		"WorkerFate": asking(func(s session.Session, ctx context.Context) (any, error) {
			_, text, err := s.WorkerFate(ctx, 7)
			return text, err
		}),
		"AllocSegment": asking(func(s session.Session, ctx context.Context) (any, error) {
			return s.AllocSegment(ctx, 1, nil)
		}),
		"AttachObject": asking(func(s session.Session, ctx context.Context) (any, error) {
			return s.AttachObject(ctx, 1, object.ID{1}, "")
		}),
		"DraftDevice": asking(func(s session.Session, ctx context.Context) (any, error) {
			return s.DraftDevice(ctx, object.Device{1}, 1, nil)
		}),
		"OfferPeer": asking(func(s session.Session, ctx context.Context) (any, error) {
			return s.OfferPeer(ctx, 1, 2, 3, false)
		}),
		"DialPeer": doing(func(s session.Session, ctx context.Context) error {
			return s.DialPeer(ctx, 1, 2, []byte("offer"))
		}),
		"PairPeers":     doing(func(s session.Session, ctx context.Context) error { return s.PairPeers(ctx, 1, 2, 3, 4) }),
		"ReserveDevice": doing(func(s session.Session, ctx context.Context) error { return s.ReserveDevice(ctx, 1, 2) }),
	})
}

// TestRightAnswers: what right answers bring, and what right ones lack.
func TestRightAnswers(t *testing.T) {
	tickets := [][32]byte{{1}, {2}}
	replies := map[wire.Type]ipc.Payload{
		wire.OpenSession: &wire.OpenSessionReply{Session: 5, Snapshot: []byte("{}")},
		wire.OfferPeer:   &wire.OfferPeerReply{Offer: []byte("offer")},
		wire.OpenRemoteWorker: &wire.OpenRemoteWorkerReply{Worker: 3, WorkerSHA256: [32]byte{9},
			Tickets: tickets},
		wire.ResumeWorker: &wire.ResumeWorkerReply{Tickets: tickets},
		wire.AllocSegment: &wire.AllocSegmentReply{Segment: 1, Bytes: 4096}, // and no descriptor
		wire.OpenWorker:   &wire.OpenWorkerReply{Worker: 1},                 // nor here
		wire.AttachObject: &wire.AttachReply{ID: object.ID{4}, Segment: 5, Offset: 6, SizeBytes: 7},
		wire.WorkerFate:   &wire.WorkerFateReply{Alive: true, Text: "well"},
		wire.CreateDevice: &wire.DeviceReply{ID: object.ID{8}},
		wire.Seal:         answers.Raw(""),
	}
	d := answers.New(t, wire.Version, func(kind wire.Type, _ int) (wire.Type, ipc.Payload) {
		if reply, there := replies[kind]; there {
			return kind | wire.ReplyBit, reply
		}
		return wire.Error, &wire.ErrorReply{Code: object.ErrExists.Code(), Text: "not in this test"}
	})
	c, err := client.Dial(context.Background(), client.Options{Socket: d.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, s := context.Background(), session.Of(c)
	if id, snapshot, err := s.Open(ctx, "v", nil); id != 5 || string(snapshot) != "{}" || err != nil {
		t.Errorf("session %d, %s, %v", id, snapshot, err)
	}
	if offer, err := s.OfferPeer(ctx, 1, 2, 3, true); string(offer) != "offer" || err != nil {
		t.Errorf("offer %q, %v", offer, err)
	}
	w, err := s.OpenRemoteWorker(ctx, 0, [32]byte{}, 2, false, true)
	if err != nil || w.ID != 3 || w.WorkerSHA256 != [32]byte{9} || len(w.Tickets) != 2 || w.Tickets[1] != tickets[1] {
		t.Errorf("worker %+v, %v", w, err)
	}
	if got, err := s.ResumeWorker(ctx, 1, []int{0, 5}); err != nil || len(got) != 2 {
		t.Errorf("%d tickets, %v", len(got), err)
	}
	_, few := s.ResumeWorker(ctx, 1, []int{0, 1, 2})
	_, noMemory := s.AllocSegment(ctx, 1, nil)
	_, noRing := s.OpenWorker(ctx, 0)
	for what, err := range map[string]error{"tickets": few, "a segment": noMemory, "a worker": noRing} {
		if !errors.Is(err, object.ErrProtocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if a, err := s.AttachObject(ctx, 1, object.ID{4}, ""); err != nil ||
		a != (session.Attached{ID: object.ID{4}, Segment: 5, Offset: 6, SizeBytes: 7}) {
		t.Errorf("attached %+v, %v", a, err)
	}
	if alive, text, err := s.WorkerFate(ctx, 1); !alive || text != "well" || err != nil {
		t.Errorf("fate %v, %q, %v", alive, text, err)
	}
	draft, err := s.DraftDevice(ctx, object.Device{1}, 1, nil)
	if err != nil || draft.ID() != (object.ID{8}) {
		t.Fatalf("draft %+v, %v", draft, err)
	}
	if err := draft.Publish(ctx, "taken"); !errors.Is(err, object.ErrExists) || d.Count(wire.Delete) != 1 {
		t.Errorf("a name that is refused: %v, %d deleted", err, d.Count(wire.Delete))
	}
	if kept, err := s.Keep(ctx, 1<<40); kept != 0 || err != nil { // a socket of this machine needs none
		t.Errorf("%v, %v", kept, err)
	}
	s.CloseWorker(1)
	s.ReturnDevice(1, 2)
	s.TellPeer(1, 2, true, "node", "why")
	s.ReleaseID(object.ID{4})
	s.Leave()
	lane, err := s.DialLane(ctx, [32]byte{1}) // another connection, which this daemon does not answer
	if err != nil {
		t.Fatal(err)
	}
	lane.Close()
}

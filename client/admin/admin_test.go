package admin_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/answers"
)

func calling(call func(ctx context.Context, n admin.Node) error) func(socket string) error {
	return answers.Calling(dial, func(ctx context.Context, c *client.Conn) error { return call(ctx, admin.Of(c)) })
}

func dial(ctx context.Context, socket string) (*client.Conn, error) {
	return client.Dial(ctx, client.Options{Socket: socket})
}

// asking is calling for what answers something.
func asking[T any](call func(n admin.Node, ctx context.Context) (T, error)) answers.Call {
	return answers.Call{To: calling(func(ctx context.Context, n admin.Node) error {
		_, err := call(n, ctx)
		return err
	})}
}

// listing is calling for what gives one thing after another.
func listing[T any](call func(n admin.Node, ctx context.Context) iter.Seq2[T, error]) answers.Call {
	return answers.Call{To: calling(func(ctx context.Context, n admin.Node) error {
		for _, err := range call(n, ctx) {
			if err != nil {
				return err
			}
		}
		return nil
	})}
}

// doing is calling for what answers nothing.
func doing(call func(n admin.Node, ctx context.Context) error) answers.Call {
	return answers.Call{To: calling(func(ctx context.Context, n admin.Node) error { return call(n, ctx) }), Empty: true}
}

// TestAnswers: neither a refusal nor nonsense is taken for an answer.
func TestAnswers(t *testing.T) {
	answers.Try(t, map[string]answers.Call{
		"Status":          asking(admin.Node.Status),
		"Devices":         asking(admin.Node.Devices),
		"OpenPage":        asking(admin.Node.OpenPage),
		"Leases":          asking(admin.Node.Leases),
		"Peers":           asking(admin.Node.Peers),
		"ClusterStatus":   asking(admin.Node.ClusterStatus),
		"BackupCluster":   asking(admin.Node.BackupCluster),
		"EachTenant":      listing(admin.Node.EachTenant),
		"EachToken":       listing(admin.Node.EachToken),
		"EachCertificate": listing(admin.Node.EachCertificate),
		"EachSession":     listing(admin.Node.EachSession),
		"CreateToken": asking(func(n admin.Node, ctx context.Context) (string, error) {
			return n.CreateToken(ctx, admin.TokenOptions{Life: time.Hour})
		}),
		"RevokeCertificates": asking(func(n admin.Node, ctx context.Context) (int, error) {
			return n.RevokeCertificates(ctx, admin.CertificateChoice{Tenant: "lab"}, "why")
		}),
		"Audit": asking(func(n admin.Node, ctx context.Context) (any, error) {
			return n.Audit(ctx, admin.AuditQuery{Since: time.Now()})
		}),
		"Place": asking(func(n admin.Node, ctx context.Context) (any, error) {
			return n.Place(ctx, object.NewID(), "", "pack")
		}),
		"JoinCluster": asking(func(n admin.Node, ctx context.Context) (any, error) {
			return n.JoinCluster(ctx, "host", "token")
		}),
		"LeaveCluster": asking(func(n admin.Node, ctx context.Context) (any, error) { return n.LeaveCluster(ctx, true) }),
		"RemoveNode":   asking(func(n admin.Node, ctx context.Context) (any, error) { return n.RemoveNode(ctx, "n", true) }),
		"RecoverCluster": asking(func(n admin.Node, ctx context.Context) (any, error) {
			return n.RecoverCluster(ctx, true)
		}),
		"RotateAuthority": asking(func(n admin.Node, ctx context.Context) (any, error) {
			return n.RotateAuthority(ctx, true, false)
		}),
		"SessionCommands": asking(func(n admin.Node, ctx context.Context) (any, error) { return n.SessionCommands(ctx, 7) }),
		"Scrub":           asking(func(n admin.Node, ctx context.Context) (any, error) { return n.Scrub(ctx, nil) }),
		"Top":             asking(func(n admin.Node, ctx context.Context) (any, error) { return n.Top(ctx, 5) }),
		"RevokeToken": doing(func(n admin.Node, ctx context.Context) error {
			return n.RevokeToken(ctx, object.NewID(), true)
		}),
		"ChangeTenant": doing(func(n admin.Node, ctx context.Context) error {
			return n.ChangeTenant(ctx, wire.ChangeTenantRequest{Name: "lab", Change: wire.TenantCreate})
		}),
		"SetPeer":    doing(func(n admin.Node, ctx context.Context) error { return n.SetPeer(ctx, "host:1", [32]byte{1}) }),
		"EndSession": doing(func(n admin.Node, ctx context.Context) error { return n.EndSession(ctx, 7) }),
		"EndLease":   doing(func(n admin.Node, ctx context.Context) error { return n.EndLease(ctx, "lease") }),
	})
}

// TestRightAnswers: what right answers bring, a page or a step at a time.
func TestRightAnswers(t *testing.T) {
	d := answers.New(t, wire.Version, func(kind wire.Type, nth int) (wire.Type, ipc.Payload) {
		switch kind {
		case wire.CreateToken:
			return kind | wire.ReplyBit, &wire.TextReply{Text: "secret"}
		case wire.TokenPage:
			if nth == 1 {
				return kind | wire.ReplyBit, &wire.PageReply{Next: "b", Items: []byte(`[{"n":1}]`)}
			}
			return kind | wire.ReplyBit, &wire.PageReply{Items: []byte(`[{"n":2},{"n":3}]`)}
		case wire.TopPage:
			return kind | wire.ReplyBit, &wire.PageReply{Next: "more", Items: []byte(`[{"size_bytes":3},{"size_bytes":2}]`)}
		case wire.Scrub:
			if nth == 1 {
				return kind | wire.ReplyBit, answers.Raw(`{"objects":1,"disk_bytes":7,"damaged":[{"id":"` +
					object.ID{1}.String() + `"}],"next":"there"}`)
			}
			return kind | wire.ReplyBit, answers.Raw(`{"objects":2,"memory_bytes":5,"next":""}`)
		case wire.Place:
			return kind | wire.ReplyBit, answers.Raw(`{"to":"a"}`)
		}
		return wire.Error, &wire.ErrorReply{Code: object.ErrUnsupported.Code(), Text: "not in this test"}
	})
	c, err := dial(context.Background(), d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, n := context.Background(), admin.Of(c)
	if token, err := n.CreateToken(ctx, admin.TokenOptions{}); token != "secret" || err != nil {
		t.Errorf("token %q, %v", token, err)
	}
	var tokens string
	for raw, err := range n.EachToken(ctx) {
		if err != nil {
			t.Error(err)
		}
		tokens += string(raw)
	}
	if tokens != `{"n":1}{"n":2}{"n":3}` {
		t.Errorf("tokens %s", tokens)
	}
	if top, err := n.Top(ctx, 1); len(top) != 1 || top[0].SizeBytes != 3 || err != nil {
		t.Errorf("the largest: %+v, %v", top, err)
	}
	if top, err := n.Top(ctx, 0); top != nil || err != nil {
		t.Errorf("none of the largest: %+v, %v", top, err)
	}
	steps := 0
	found, err := n.Scrub(ctx, func(object.ScrubReport) { steps++ })
	if err != nil || steps != 2 || found.Objects != 3 || found.MemoryBytes != 5 || found.DiskBytes != 7 ||
		len(found.Damaged) != 1 || found.Damaged[0].ID != (object.ID{1}) {
		t.Errorf("scrub: %+v in %d steps, %v", found, steps, err)
	}
	if said, err := n.Place(ctx, object.ID{1}, "", ""); string(said) != `{"to":"a"}` || err != nil {
		t.Errorf("place: %s, %v", said, err)
	}
	if _, err := n.ClusterStatus(ctx); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("what an older daemon does not know: %v", err)
	}
	if _, err := n.JoinCluster(ctx, "u@host", "token"); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("no address: %v", err)
	}
	if err := c.Internal().Renew(ctx); err != nil { // it shows no certificate
		t.Error(err)
	}
	if err := n.IndexState(ctx); err == nil {
		t.Error("this daemon has no index")
	}
}

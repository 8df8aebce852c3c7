package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// TestAnswers: of each call, what the daemon refuses is its error, and an answer that makes no sense is
// object.ErrProtocol; neither is taken for an answer, and the connection goes on.
func TestAnswers(t *testing.T) {
	refused := func(wire.Type, int) (wire.Type, ipc.Payload) {
		return wire.Error, &wire.ErrorReply{Code: object.ErrPermission.Code(), Text: "not you"}
	}
	garbage := func(kind wire.Type, _ int) (wire.Type, ipc.Payload) {
		return kind | wire.ReplyBit, rawPayload("\xff\xff\xff")
	}
	ctx := context.Background()
	for name, test := range map[string]struct {
		call  func(c *Conn) error
		empty bool // its answer has no payload, and none is looked at
	}{
		"Publish":   {call: func(c *Conn) error { _, err := c.Publish(ctx, object.NewID(), "n", false); return err }},
		"Unpublish": {func(c *Conn) error { return c.Unpublish(ctx, "n") }, true},
		"Published": {call: func(c *Conn) error { _, err := c.Published(ctx, ""); return err }},
		"CreateToken": {call: func(c *Conn) error {
			_, err := c.CreateToken(ctx,
				TokenOptions{Life: time.Hour})
			return err
		}},
		"Tokens":      {call: func(c *Conn) error { _, err := c.Tokens(ctx); return err }},
		"RevokeToken": {func(c *Conn) error { return c.RevokeToken(ctx, object.NewID(), true) }, true},
		"RevokeCertificates": {call: func(c *Conn) error {
			_, err := c.RevokeCertificates(ctx, CertificateChoice{Tenant: "lab"}, "why")
			return err
		}},
		"ChangeTenant": {func(c *Conn) error {
			return c.ChangeTenant(ctx, wire.ChangeTenantRequest{Name: "lab", Change: wire.TenantCreate})
		}, true},
		"EachTenant":      {call: func(c *Conn) error { _, err := collect(c.EachTenant(ctx)); return err }},
		"EachCertificate": {call: func(c *Conn) error { _, err := collect(c.EachCertificate(ctx)); return err }},
		"OpenPage":        {call: func(c *Conn) error { _, err := c.OpenPage(ctx); return err }},
		"renew":           {call: func(c *Conn) error { _, err := c.renew(ctx, []byte("request")); return err }},
		"OpenRemoteWorker": {call: func(c *Conn) error {
			_, err := c.OpenRemoteWorker(ctx, 0, [32]byte{}, 2, false, false)
			return err
		}},
		"OfferPeer":   {call: func(c *Conn) error { _, err := c.OfferPeer(ctx, 1, 2, 3, false); return err }},
		"DialPeer":    {func(c *Conn) error { return c.DialPeer(ctx, 1, 2, []byte("offer")) }, true},
		"PairPeers":   {func(c *Conn) error { return c.PairPeers(ctx, 1, 2, 3, 4) }, true},
		"Peers":       {call: func(c *Conn) error { _, err := c.Peers(ctx); return err }},
		"SetPeer":     {func(c *Conn) error { return c.SetPeer(ctx, "host:1", [32]byte{1}) }, true},
		"EndSession":  {func(c *Conn) error { return c.EndSession(ctx, 7) }, true},
		"EachSession": {call: func(c *Conn) error { _, err := collect(c.EachSession(ctx)); return err }},
		"WorkerFate":  {call: func(c *Conn) error { _, _, err := c.WorkerFate(ctx, 7); return err }},
		"Devices":     {call: func(c *Conn) error { _, err := c.Devices(ctx); return err }},
		"Status":      {call: func(c *Conn) error { _, err := c.Status(ctx); return err }},
		"Scrub":       {call: func(c *Conn) error { _, err := c.Scrub(ctx, nil); return err }},
		"NewUpload":   {call: func(c *Conn) error { _, err := c.NewUpload(ctx, 1, CreateOptions{}); return err }},
		"Open":        {call: func(c *Conn) error { _, err := c.Open(ctx, object.NewID(), "", 0); return err }},
		"Top":         {call: func(c *Conn) error { _, err := c.Top(ctx, 5); return err }},
		"Checksum":    {call: func(c *Conn) error { _, err := c.Checksum(ctx, object.NewID()); return err }},
		"Sweep":       {call: func(c *Conn) error { return c.Sweep(ctx) }},
	} {
		t.Run(name, func(t *testing.T) {
			for _, way := range []struct {
				answer func(wire.Type, int) (wire.Type, ipc.Payload)
				want   error
			}{{refused, object.ErrPermission}, {garbage, object.ErrProtocol}} {
				d := newCounted(t, wire.Version, way.answer)
				c, err := Dial(ctx, Options{Socket: d.socket})
				if err != nil {
					t.Fatal(err)
				}
				err = test.call(c)
				if !errors.Is(err, way.want) && (!test.empty || err != nil || way.want == object.ErrPermission) {
					t.Errorf("%v, want %v", err, way.want)
				}
				if again := c.Unpublish(ctx, "n"); errors.Is(again, ErrDisconnected) {
					t.Errorf("the connection has ended: %v", again)
				}
				c.Close()
			}
		})
	}
}

// TestAnswersOfTheCluster: what right answers bring.
func TestAnswersOfTheCluster(t *testing.T) {
	tickets := [][32]byte{{1}, {2}}
	answers := map[wire.Type]ipc.Payload{
		wire.Publish:       &wire.Number{N: 12},
		wire.CreateToken:   &wire.TextReply{Text: "secret"},
		wire.PublishedPage: &wire.PageReply{Items: []byte(`[{"name":"a"},{"name":"b"}]`)},
		wire.OfferPeer:     &wire.OfferPeerReply{Offer: []byte("offer")},
		wire.OpenRemoteWorker: &wire.OpenRemoteWorkerReply{Worker: 3, WorkerSHA256: [32]byte{9},
			Tickets: tickets},
		wire.Scrub: rawPayload(`{"objects":2,"memory_bytes":5,"next":""}`),
		wire.Renew: &wire.DERMessage{DER: []byte("der")},
	}
	d := newCounted(t, wire.Version, func(kind wire.Type, nth int) (wire.Type, ipc.Payload) {
		if kind == wire.PublishedPage && nth == 1 {
			return kind | wire.ReplyBit, &wire.PageReply{Next: "b", Items: []byte(`[{"name":"0"}]`)}
		}
		if kind == wire.Scrub && nth == 1 {
			return kind | wire.ReplyBit, rawPayload(`{"objects":1,"disk_bytes":7,"damaged":[{"id":"` +
				object.ID{1}.String() + `"}],"next":"there"}`)
		}
		return kind | wire.ReplyBit, answers[kind]
	})
	c, err := Dial(context.Background(), Options{Socket: d.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if epoch, err := c.Publish(context.Background(), object.NewID(), "n", true); epoch != 12 || err != nil {
		t.Errorf("epoch %d, %v", epoch, err)
	}
	if token, err := c.CreateToken(context.Background(), TokenOptions{}); token != "secret" || err != nil {
		t.Errorf("token %q, %v", token, err)
	}
	if list, err := c.Published(context.Background(),
		""); string(list) != `[{"name":"0"},{"name":"a"},{"name":"b"}]` || err != nil {
		t.Errorf("published %s, %v", list, err)
	}
	if offer, err := c.OfferPeer(context.Background(), 1, 2, 3, true); string(offer) != "offer" || err != nil {
		t.Errorf("offer %q, %v", offer, err)
	}
	if der, err := c.renew(context.Background(), nil); string(der) != "der" || err != nil {
		t.Errorf("certificate %q, %v", der, err)
	}
	w, err := c.OpenRemoteWorker(context.Background(), 0, [32]byte{}, 2, false, true)
	if err != nil || w.ID != 3 || w.WorkerSHA256 != [32]byte{9} || len(w.Tickets) != 2 || w.Tickets[1] != tickets[1] {
		t.Errorf("worker %+v, %v", w, err)
	}
	steps := 0
	found, err := c.Scrub(context.Background(), func(object.ScrubReport) { steps++ })
	if err != nil || steps != 2 || found.Objects != 3 || found.MemoryBytes != 5 || found.DiskBytes != 7 ||
		len(found.Damaged) != 1 || found.Damaged[0].ID != (object.ID{1}) {
		t.Errorf("scrub: %+v in %d steps, %v", found, steps, err)
	}
}

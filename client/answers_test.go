package client

import (
	"context"
	"testing"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/answers"
)

func calling(call func(ctx context.Context, c *Conn) error) func(socket string) error {
	return answers.Calling(func(ctx context.Context, socket string) (*Conn, error) {
		return Dial(ctx, Options{Socket: socket})
	}, call)
}

// TestAnswers: neither a refusal nor nonsense is taken for an answer.
func TestAnswers(t *testing.T) {
	answers.Try(t, map[string]answers.Call{
		"Publish": {To: calling(func(ctx context.Context, c *Conn) error {
			_, err := c.Publish(ctx, object.NewID(), "n", false)
			return err
		})},
		"Unpublish": {To: calling(func(ctx context.Context, c *Conn) error { return c.Unpublish(ctx, "n") }), Empty: true},
		"Published": {To: calling(func(ctx context.Context, c *Conn) error {
			_, err := c.Published(ctx, "")
			return err
		})},
		"renew": {To: calling(func(ctx context.Context, c *Conn) error {
			_, err := c.renew(ctx, []byte("request"))
			return err
		})},
		"NewUpload": {To: calling(func(ctx context.Context, c *Conn) error {
			_, err := c.NewUpload(ctx, 1, CreateOptions{})
			return err
		})},
		"Open": {To: calling(func(ctx context.Context, c *Conn) error {
			_, err := c.Open(ctx, object.NewID(), "", 0)
			return err
		})},
		"Checksum": {To: calling(func(ctx context.Context, c *Conn) error {
			_, err := c.Checksum(ctx, object.NewID())
			return err
		})},
		"sweep": {To: calling(func(ctx context.Context, c *Conn) error { return c.Sweep(ctx) })},
	})
}

// TestRightAnswers: what right answers bring.
func TestRightAnswers(t *testing.T) {
	replies := map[wire.Type]ipc.Payload{
		wire.Publish:       &wire.Number{N: 12},
		wire.PublishedPage: &wire.PageReply{Items: []byte(`[{"name":"a"},{"name":"b"}]`)},
		wire.Renew:         &wire.DERMessage{DER: []byte("der")},
	}
	d := answers.New(t, wire.Version, func(kind wire.Type, nth int) (wire.Type, ipc.Payload) {
		if kind == wire.PublishedPage && nth == 1 {
			return kind | wire.ReplyBit, &wire.PageReply{Next: "b", Items: []byte(`[{"name":"0"}]`)}
		}
		return kind | wire.ReplyBit, replies[kind]
	})
	c, err := Dial(context.Background(), Options{Socket: d.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if epoch, err := c.Publish(context.Background(), object.NewID(), "n", true); epoch != 12 || err != nil {
		t.Errorf("epoch %d, %v", epoch, err)
	}
	if list, err := c.Published(context.Background(),
		""); string(list) != `[{"name":"0"},{"name":"a"},{"name":"b"}]` || err != nil {
		t.Errorf("published %s, %v", list, err)
	}
	if der, err := c.renew(context.Background(), nil); string(der) != "der" || err != nil {
		t.Errorf("certificate %q, %v", der, err)
	}
}

package frontdoor

import (
	"context"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

func (c *connection) fill(f *ipc.Frame, m wire.NameMessage) error {
	h, err := c.store.Fill(m.ID, m.Name)
	if err != nil {
		return err
	}
	c.scratch.get = wire.GetReply{ID: h.ID, Ref: h.Ref, SizeBytes: h.Size, Class: h.Class, Meta: h.Meta}
	c.replyFD(f, &c.scratch.get, h.FD)
	return nil
}

func (c *connection) filled(m wire.IDMessage) error { return c.store.Filled(m.ID) }

// sealFilled seals at once where nobody else fills the object, else later.
func (c *connection) sealFilled(f *ipc.Frame, m wire.SealFilledRequest) error {
	if m.WaitMS == 0 || !c.store.Fillers(m.ID) {
		if err := c.sealNow(m); err != nil {
			return err
		}
		c.reply(f, nil)
		return nil
	}
	header := ipc.Frame{Header: f.Header}
	return c.later(store.WaitBytes, func() {
		ctx, cancel := c.ctx, context.CancelFunc(func() {})
		if m.WaitMS != wire.WaitForEver {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(m.WaitMS)*time.Millisecond)
		}
		defer cancel()
		err := c.store.AwaitFilled(ctx, m.ID)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil {
			err = c.sealNow(m)
		}
		c.answer(&header, nil, err)
	})
}

func (c *connection) sealNow(m wire.SealFilledRequest) error {
	if m.Despite {
		if err := c.store.Forgive(m.ID); err != nil {
			return err
		}
	}
	return c.store.Seal(m.ID, m.Strict)
}

func (c *connection) compose(m wire.ComposeRequest) (ipc.Payload, error) {
	id, err := c.store.Compose(store.Spec{Class: m.Class, Name: m.Name, Meta: m.Meta, TTL: duration(m.TTLMS),
		Labels: m.Labels}, m.Members)
	return &wire.IDMessage{ID: id}, err
}

// composeMax bounds a Compose.
const composeMax = min(ipc.MaxPayload,
	1+stringMax+metaMax+8+labelsMax+2+object.MaxMembers*(stringMax+idBytes))

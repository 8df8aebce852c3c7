package session

import (
	"context"
	"errors"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Draft is an unsealed object in the memory of a GPU that this process fills by a worker (AttachObject), without having
// the memory itself. So it works on another machine's daemon, too.
type Draft struct {
	c    conn.Conn
	id   object.ID
	life uint64 // the life of the connection that made it
}

// DraftDevice is CreateDevice for a worker, of an ephemeral object without a name. The caller must Publish or Abort it.
func (s Session) DraftDevice(ctx context.Context, device object.Device, size uint64, meta []byte) (*Draft, error) {
	r, err := s.c.Ask(ctx, wire.CreateDevice, &wire.CreateDeviceRequest{SizeBytes: size,
		Device: device, Class: object.Ephemeral, Meta: meta})
	if err != nil {
		return nil, err
	}
	r.Close()
	var m wire.DeviceReply
	if err := m.Decode(r.Payload); err != nil {
		return nil, err
	}
	return &Draft{s.c, m.ID, r.Life}, nil
}

// ID names the object.
func (d *Draft) ID() object.ID { return d.id }

// Publish seals the object, and gives it a name that it takes from the object that has it: from then on it is of class
// named. Without a name it stays ephemeral. The GPU's work on it must have ended. The connection holds a reference
// until ReleaseID. An error leaves no object.
func (d *Draft) Publish(ctx context.Context, name string) error {
	_, err := d.c.AskIn(ctx, d.life, wire.Seal, &wire.SealRequest{ID: d.id})
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // perhaps sealed: either way it ends with this reference
			d.c.Post(d.life, wire.Release, &wire.IDMessage{ID: d.id})
		} else {
			d.Abort(ctx)
		}
		return err
	}
	if name == "" {
		return nil
	}
	if _, err = d.c.AskIn(ctx, d.life, wire.Bind, &wire.BindRequest{ID: d.id, Name: name, Replace: true}); err != nil {
		_ = d.c.Tell(ctx, d.life, wire.Delete, &wire.NameMessage{ID: d.id}) // it goes with the connection, too
		d.c.Post(0, wire.Release, &wire.IDMessage{ID: d.id})
	}
	return err
}

// Abort drops the object. The daemon is told even where ctx has ended.
func (d *Draft) Abort(ctx context.Context) {
	_ = d.c.Tell(ctx, d.life, wire.Abort, &wire.IDMessage{ID: d.id}) // it goes with the connection, too
}

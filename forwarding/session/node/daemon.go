package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/session"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/link"
	"tendril/store/object"
)

// aboveStandard is the lowest descriptor this library keeps: a program may close 0 to 2 and open files there.
const aboveStandard = 10

// local is the client's connection as a Control. Mappings are its own: the client lets a segment go when it is
// published, a cl_mem does not.
type local struct {
	conn    *client.Conn
	session session.Session
}

func newLocal(conn *client.Conn) *local { return &local{conn, session.Of(conn)} }

// Dial connects to the daemon at socket, "" for the default one.
func Dial(socket, program string) (Control, error) {
	conn, err := client.Dial(context.Background(), client.Options{Socket: socket, Program: program})
	if err != nil {
		return nil, err
	}
	return newLocal(conn), nil
}

func (c *local) OpenSession(version string, options []byte) ([]byte, error) {
	_, snapshot, err := c.session.Open(context.Background(), version, options)
	return snapshot, err
}

func (c *local) OpenWorker(platform uint32) (conn.WorkerFiles, error) {
	w, err := c.session.OpenWorker(context.Background(), platform)
	return conn.WorkerFiles{ID: w.ID, Socket: w.Socket, Ring: w.Ring}, err
}

func (c *local) CloseWorker(worker uint64) { c.session.CloseWorker(worker) }

func (c *local) WorkerFate(worker uint64) (bool, string, error) {
	alive, how, err := c.session.WorkerFate(context.Background(), worker)
	if ended := (*client.EndedError)(nil); errors.As(err, &ended) && errors.Is(ended.Why, object.ErrAborted) {
		err = &conn.SessionEndedError{Why: strings.TrimPrefix(ended.Why.Error(), object.ErrAborted.Error()+": ")}
	}
	return alive, how, err
}

func (c *local) ReserveDevice(worker, bytes uint64, less bool) error {
	if less {
		c.session.ReturnDevice(worker, bytes)
		return nil
	}
	return c.session.ReserveDevice(context.Background(), worker, bytes)
}

func (c *local) AllocSegment(size uint64, spare func()) (*Segment, error) {
	theirs, err := c.session.AllocSegment(context.Background(), size, spare)
	if err != nil {
		return nil, err
	}
	file, err := raise(theirs.File)
	if err != nil {
		theirs.Free()
		return nil, err
	}
	n := len(theirs.Bytes())
	theirs.Unmap()
	bytes, err := unix.Mmap(int(file.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		file.Close()
		theirs.Free()
		return nil, fmt.Errorf("map a segment of %d bytes: %w", n, err)
	}
	// The daemon has touched the memory; this spares a fault a page here. Advice: the faults do it otherwise.
	_ = unix.Madvise(bytes, unix.MADV_POPULATE_WRITE)
	return &Segment{ID: theirs.ID, Bytes: bytes, File: file, theirs: theirs}, nil
}

// raise duplicates a descriptor to a number that no program takes for its own standard files, and closes the first.
func raise(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, aboveStandard)
	if err != nil {
		return nil, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	f.Close()
	return os.NewFile(uintptr(fd), "segment"), nil
}

func (c *local) FreeSegment(s *Segment) {
	c.UnmapSegment(s)
	s.theirs.Free()
}

func (c *local) UnmapSegment(s *Segment) {
	_ = unix.Munmap(s.Bytes) // ours, and mapped: it cannot fail
	s.File.Close()
}

// PublishSegment makes a named object, or without a name an ephemeral one that lives as long as this process.
func (c *local) PublishSegment(s *Segment, size uint64, name string, meta []byte) ([16]byte, error) {
	class := object.Named
	if name == "" {
		class = object.Ephemeral
	}
	id, err := s.theirs.Publish(context.Background(), size, class, name, meta, name != "")
	if err == nil && name != "" {
		c.session.ReleaseID(id)
	}
	return id, err
}

func (c *local) AttachObject(worker uint64, id [16]byte, name string) (*Object, error) {
	a, err := c.session.AttachObject(context.Background(), worker, id, name)
	if errors.Is(err, object.ErrUnsupported) {
		return c.attachOpaque(worker, id, name, err)
	}
	if err != nil {
		return nil, err
	}
	o := &Object{ID: a.ID, Segment: a.Segment, Offset: a.Offset, Size: a.SizeBytes}
	if a.Segment&clwire.AttachedDevice != 0 {
		info, err := c.conn.Stat(context.Background(), a.ID)
		if err != nil {
			c.session.ReleaseID(a.ID)
			return nil, err
		}
		o.Device, o.Draft = info.Device.String(), info.State == object.Open
		return o, nil
	}
	if c.conn.Remote() {
		o.Copied = c.isCopy(a.ID, id, name)
		return o, nil
	}
	o.Copied = name == "" && a.ID != id // of one whose GPU is gone; by its name a question would say so
	if o.theirs, err = c.conn.Get(context.Background(), a.ID, 0); err != nil {
		c.session.ReleaseID(a.ID)
		return nil, err
	}
	o.Bytes = o.theirs.Bytes()
	return o, nil
}

// isCopy reports whether the daemon of another machine attached a copy in place of the object asked for.
func (c *local) isCopy(got, id [16]byte, name string) bool {
	if name == "" {
		return got != id
	}
	info, err := c.conn.StatByName(context.Background(), name)
	return err == nil && info.ID != got
}

// attachOpaque is AttachObject of a copy where the object is in the memory of an OpenCL device, which only its driver
// has; otherwise it answers why.
func (c *local) attachOpaque(worker uint64, id [16]byte, name string, why error) (*Object, error) {
	stat := func() (object.Info, error) { return c.conn.Stat(context.Background(), id) }
	if name != "" {
		stat = func() (object.Info, error) { return c.conn.StatByName(context.Background(), name) }
	}
	info, err := stat()
	if err != nil || info.Kind != object.OpenCL || info.State == object.Open {
		return nil, why
	}
	o, err := c.AttachCopy(worker, &Object{ID: info.ID, Size: info.SizeBytes})
	if err != nil {
		return nil, err
	}
	o.Copied = true
	return o, nil
}

func (c *local) AttachCopy(worker uint64, o *Object) (*Object, error) {
	buf, err := c.conn.Create(context.Background(), o.Size, client.CreateOptions{Own: true})
	if err != nil {
		return nil, err
	}
	if err := c.conn.CopyObject(context.Background(), buf.ID(), 0, o.ID, "", 0, o.Size); err != nil {
		return nil, errors.Join(err, buf.Abort(context.Background()))
	}
	sealed, err := buf.Seal(context.Background())
	if err != nil {
		return nil, errors.Join(err, buf.Abort(context.Background()))
	}
	defer sealed.Release() // the worker's reference keeps it
	return c.AttachObject(worker, sealed.ID(), "")
}

func (c *local) DraftAlone(gpu string, size uint64, meta []byte) (*Object, error) {
	device, err := object.ParseDevice(gpu)
	if err != nil {
		return nil, err
	}
	draft, err := c.session.DraftDevice(context.Background(), device, size, meta)
	if err != nil {
		return nil, err
	}
	return &Object{ID: draft.ID(), Size: size, Device: gpu, Draft: true, draft: draft}, nil
}

func (c *local) FillDraft(o *Object, from [16]byte, offset, bytes uint64) error {
	return c.conn.CopyObject(context.Background(), o.ID, 0, from, "", offset, bytes)
}

func (c *local) SendDraft(o *Object, offset uint64, b []byte) (err error) {
	sent, err := c.conn.NewUpload(context.Background(), uint64(len(b)), client.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err = sent.Write(b); err == nil {
		err = sent.Seal(context.Background())
	}
	if err != nil {
		return errors.Join(err, sent.Abort(context.Background()))
	}
	defer sent.Release()
	return c.conn.CopyObject(context.Background(), o.ID, offset, sent.ID(), "", 0, uint64(len(b)))
}

func (c *local) JoinDraft(whole *Object, offset uint64, part *Object) error {
	if err := part.draft.Publish(context.Background(), ""); err != nil {
		return err
	}
	defer c.session.ReleaseID(part.ID)
	return c.conn.CopyObject(context.Background(), whole.ID, offset, part.ID, "", 0, part.Size)
}

func (c *local) DetachObject(o *Object) {
	if o.theirs != nil {
		o.theirs.Release()
	}
	c.session.ReleaseID(o.ID)
}

func (c *local) DraftObject(worker uint64, gpu string, size uint64, meta []byte) (*Object, error) {
	o, err := c.DraftAlone(gpu, size, meta)
	if err != nil {
		return nil, err
	}
	a, err := c.session.AttachObject(context.Background(), worker, o.ID, "")
	if err != nil {
		o.draft.Abort(context.Background())
		return nil, err
	}
	o.Segment, o.Size = a.Segment, a.SizeBytes
	return o, nil
}

func (c *local) PublishDraft(o *Object, name string) error {
	err := o.draft.Publish(context.Background(), name)
	if err == nil && name != "" {
		c.session.ReleaseID(o.ID)
	}
	return err
}

func (c *local) DropDraft(o *Object) { o.draft.Abort(context.Background()) }

func (c *local) Close() error { return c.conn.Close() }

// serverControl is a local of another machine.
type remote struct{ local }

// DialServer connects to the daemon of another machine, named as client.DialServer has it. silence: as client.Options
// has it.
func DialServer(server, program string, silence time.Duration) (Control, error) {
	conn, err := client.DialServer(context.Background(), server, client.Options{Program: program, Silence: silence})
	if err != nil {
		return nil, err
	}
	return &remote{*newLocal(conn)}, nil
}

func (c *local) Others(program string, silence time.Duration) (list []Other, err error) {
	access, err := c.conn.Access(context.Background())
	if err != nil {
		return nil, err
	}
	for _, n := range access.Nodes {
		list = append(list, Other{n.ID, n.Name, func() (Control, error) {
			conn, err := access.DialNode(context.Background(), n, client.Options{Program: program, Silence: silence})
			if err != nil {
				return nil, err
			}
			return &remote{*newLocal(conn)}, nil
		}})
	}
	return list, nil
}

func (c *remote) OpenRemoteWorker(platform uint32, own link.Fingerprint, lanes int, plaintext,
	resume bool) (conn.RemoteWorker, error) {
	w, err := c.session.OpenRemoteWorker(context.Background(), platform, own, lanes, plaintext, resume)
	return conn.RemoteWorker{ID: w.ID, Fingerprint: w.WorkerSHA256, Tickets: w.Tickets}, err
}

func (c *remote) KeepSession(limit time.Duration) (time.Duration, error) {
	return c.session.Keep(context.Background(), limit)
}

func (c *remote) ResumeWorker(worker uint64, lanes []int) ([][32]byte, error) {
	return c.session.ResumeWorker(context.Background(), worker, lanes)
}

func (c *remote) Leave() { c.session.Leave() }

func (c *remote) DialLane(ticket [32]byte) (*os.File, error) {
	s, err := c.session.DialLane(context.Background(), ticket)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(s.Release()), "lane"), nil
}

// AllocSegment is object.ErrUnsupported: buffers lie in the worker's memory.
func (c *remote) AllocSegment(uint64, func()) (*Segment, error) {
	return nil, fmt.Errorf("%w: %w", object.ErrUnsupported, ErrNoShared)
}

func (c *local) OfferPeer(worker, link uint64, lanes int, plaintext bool) ([]byte, error) {
	return c.session.OfferPeer(context.Background(), worker, link, lanes, plaintext)
}

func (c *local) DialPeer(worker, link uint64, offer []byte) error {
	return c.session.DialPeer(context.Background(), worker, link, offer)
}

func (c *local) PairPeers(a, b, link uint64, lanes int) error {
	return c.session.PairPeers(context.Background(), a, b, link, lanes)
}

func (c *local) TellPeer(worker, link uint64, up bool, with, why string) {
	c.session.TellPeer(worker, link, up, with, why)
}

// ErrNoShared is what a remote daemon's Control answers where memory would be shared.
var ErrNoShared = errors.New("there is no shared memory with another machine")

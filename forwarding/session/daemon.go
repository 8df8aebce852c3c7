package session

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/forwarding/link"
	"tendril/store/object"
)

// aboveStandard is the lowest descriptor this library keeps: a program may close 0 to 2 and open files there.
const aboveStandard = 10

// daemonControl is the client's connection as a Control. Mappings are its own: the client lets a segment go when it is
// published, a cl_mem does not.
type daemonControl struct{ conn *client.Conn }

// DialDaemon connects to the daemon at socket, "" for the default one.
func DialDaemon(socket, program string) (Control, error) {
	conn, err := client.DialOptions(client.Options{Socket: socket, Program: program})
	if err != nil {
		return nil, err
	}
	return &daemonControl{conn}, nil
}

func (c *daemonControl) OpenSession(version string, options []byte) ([]byte, error) {
	_, snapshot, err := c.conn.OpenSession(version, options)
	return snapshot, err
}

func (c *daemonControl) OpenWorker(platform uint32) (WorkerFiles, error) {
	w, err := c.conn.OpenWorker(platform)
	return WorkerFiles{ID: w.ID, Socket: w.Socket, Ring: w.Ring}, err
}

func (c *daemonControl) CloseWorker(worker uint64) { c.conn.CloseWorker(worker) }

func (c *daemonControl) WorkerFate(worker uint64) (bool, string, error) {
	return c.conn.WorkerFate(worker)
}

func (c *daemonControl) ReserveDevice(worker, bytes uint64, less bool) error {
	if less {
		c.conn.ReturnDevice(worker, bytes)
		return nil
	}
	return c.conn.ReserveDevice(worker, bytes)
}

func (c *daemonControl) AllocSegment(size uint64) (*Segment, error) {
	theirs, err := c.conn.AllocSegment(size)
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

func (c *daemonControl) FreeSegment(s *Segment) {
	c.UnmapSegment(s)
	s.theirs.Free()
}

func (c *daemonControl) UnmapSegment(s *Segment) {
	_ = unix.Munmap(s.Bytes) // ours, and mapped: it cannot fail
	s.File.Close()
}

// PublishSegment makes a named object, or without a name an ephemeral one that lives as long as this process.
func (c *daemonControl) PublishSegment(s *Segment, size uint64, name string, meta []byte) ([16]byte, error) {
	o := client.CreateOptions{Name: name, Class: object.Named, Meta: meta}
	if name == "" {
		o.Class = object.Ephemeral
	}
	id, err := s.theirs.Publish(size, o, name != "")
	if err == nil && name != "" {
		c.conn.ReleaseID(id)
	}
	return id, err
}

func (c *daemonControl) AttachObject(worker uint64, id [16]byte, name string) (*AttachedObject, error) {
	a, err := c.conn.AttachObject(worker, id, name)
	if err != nil {
		return nil, err
	}
	o := &AttachedObject{ID: a.ID, Segment: a.Segment, Offset: a.Offset, Size: a.SizeBytes}
	if c.conn.Remote() {
		return o, nil
	}
	if o.theirs, err = c.conn.Get(context.Background(), a.ID, 0); err != nil {
		c.conn.ReleaseID(a.ID)
		return nil, err
	}
	o.Bytes = o.theirs.Bytes()
	return o, nil
}

func (c *daemonControl) DetachObject(o *AttachedObject) {
	if o.theirs != nil {
		o.theirs.Release()
	}
	c.conn.ReleaseID(o.ID)
}

func (c *daemonControl) Close() error { return c.conn.Close() }

// serverControl is a daemonControl of another machine.
type serverControl struct{ daemonControl }

// DialServer connects to the daemon of another machine, named as client.DialServer has it. silence: as client.Options has it.
func DialServer(server, program string, silence time.Duration) (Control, error) {
	conn, err := client.DialServer(server, client.Options{Program: program, Silence: silence})
	if err != nil {
		return nil, err
	}
	return &serverControl{daemonControl{conn}}, nil
}

func (c *serverControl) OpenRemoteWorker(platform uint32, own link.Fingerprint, lanes int, plaintext, resume bool) (RemoteWorker, error) {
	w, err := c.conn.OpenRemoteWorker(platform, own, lanes, plaintext, resume)
	return RemoteWorker{ID: w.ID, Fingerprint: w.WorkerSHA256, Tickets: w.Tickets}, err
}

func (c *serverControl) KeepSession(limit time.Duration) (time.Duration, error) {
	return c.conn.KeepSession(limit)
}

func (c *serverControl) ResumeWorker(worker uint64, lanes []int) ([][32]byte, error) {
	return c.conn.ResumeWorker(worker, lanes)
}

func (c *serverControl) Leave() { c.conn.LeaveSession() }

func (c *serverControl) DialLane(ticket [32]byte) (*os.File, error) {
	s, err := c.conn.DialLane(ticket)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(s.Release()), "lane"), nil
}

// AllocSegment is object.ErrUnsupported: buffers lie in the worker's memory.
func (c *serverControl) AllocSegment(uint64) (*Segment, error) {
	return nil, fmt.Errorf("%w: %w", object.ErrUnsupported, errNoShared)
}

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/handoff"
	"tendril/store/object"
)

// fakeDevices has memory of GPUs that is memfds, in pieces of 2 MiB.
type fakeDevices struct {
	mu     sync.Mutex
	fail   error                    // of the next calls
	during func()                   // called in each
	gone   error                    // Available's
	real   uint64                   // what the next allocation really has; 0: as asked for, rounded
	places []Place                  // of the copies
	copied uint64                   // bytes of the last one
	last   object.Device            // that was asked for
	made   int                      // allocations
	forgot int                      // segments
	full   int                      // so many allocations more find no memory
	limit  uint64                   // what one device has; 0: no limit
	where  map[uint64]object.Device // by inode, of what was made
}

// free gives what a device has left: memory is taken as long as this process has a descriptor of it. mu is held.
func (f *fakeDevices) free(device object.Device) uint64 {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	left, seen := f.limit, map[uint64]bool{}
	for _, x := range list {
		var st unix.Stat_t
		if unix.Stat("/proc/self/fd/"+x.Name(), &st) == nil && f.where[st.Ino] == device && !seen[st.Ino] {
			seen[st.Ino] = true
			left -= min(left, uint64(st.Size))
		}
	}
	return left
}

func (f *fakeDevices) Available() error { return f.gone }

func (f *fakeDevices) called() error {
	f.mu.Lock()
	during, err := f.during, f.fail
	f.mu.Unlock()
	if during != nil {
		during()
	}
	return err
}

func (f *fakeDevices) Allocate(_ Asker, device object.Device, n uint64) (int, uint64, error) {
	if err := f.called(); err != nil {
		return -1, 0, err
	}
	if f.full > 0 {
		f.full--
		return -1, 0, object.ErrFull
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	granule := uint64(deviceGranule)
	if device == openCLDevice {
		granule = twinGranule
	}
	real := max((n+granule-1)&^(granule-1), f.real)
	if f.limit > 0 {
		if free := f.free(device); free < real {
			return -1, free, object.ErrFull
		}
	}
	fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, 0, err
	}
	if err := unix.Ftruncate(fd, int64(real)); err != nil {
		return -1, 0, err
	}
	if device == openCLDevice { // a twin's size stays
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			return -1, 0, err
		}
	}
	f.last = device
	f.made++
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, 0, err
	}
	if f.where == nil {
		f.where = make(map[uint64]object.Device)
	}
	f.where[st.Ino] = device
	return fd, real, nil
}

func (f *fakeDevices) Forget(fd int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgot++
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && f.where[st.Ino] == openCLDevice { // its twin may stay
		delete(f.where, st.Ino)
	}
}

func (f *fakeDevices) Copy(_ Asker, to, from Place, n uint64) error {
	f.mu.Lock()
	f.places, f.copied = append(f.places, to, from), n
	f.mu.Unlock()
	if err := f.called(); err != nil {
		return err
	}
	b := make([]byte, n)
	if got, err := unix.Pread(from.FD, b, int64(from.Offset)); err != nil || got != len(b) {
		return fmt.Errorf("read %d of %d bytes: %w", got, n, err)
	}
	got, err := unix.Pwrite(to.FD, b, int64(to.Offset))
	if err != nil || got != len(b) {
		return fmt.Errorf("wrote %d of %d bytes: %w", got, n, err)
	}
	return nil
}

var gpuA, gpuB = object.Device{1}, object.Device{2}

// onGPU makes a sealed object in the memory of a GPU.
func onGPU(t testing.TB, c *Conn, spec Spec, gpu object.Device) object.ID {
	t.Helper()
	h, err := c.CreateDevice(spec, gpu)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(h.FD)
	if err := c.Seal(h.ID, false); err != nil {
		t.Fatal(err)
	}
	return h.ID
}

func TestObjectsInTheMemoryOfAGPU(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, Segments: 64})
	a, b := connect(t, s, "x"), connect(t, s, "x")
	h, err := a.CreateDevice(Spec{SizeBytes: 5000, Name: "n", Class: object.Named, Meta: []byte(`{"a":1}`),
		Labels: map[string]string{"k": "v"}}, gpuA)
	if err != nil || h.Bytes != deviceGranule || h.Size != 5000 || h.Device != gpuA || f.last != gpuA {
		t.Fatalf("%+v, %v", h, err)
	}
	if _, err := unix.Pwrite(h.FD, []byte("canary"), 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(h.FD)
	_, err = b.GetDevice(h.ID, "")
	wantErr(t, err, object.ErrNotSealed)
	woken := make(chan error, 1)
	if _, err := b.Later([]Wanted{{Name: "n"}}, time.Time{}, func(err error, _ bool) { woken <- err }); err != nil {
		t.Fatal(err)
	}
	if err := a.Seal(h.ID, false); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; err != nil {
		t.Errorf("who waited for it: %v", err)
	}
	mustAgree(t, s, true)
	got, err := b.GetDevice(object.ID{}, "n")
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 6)
	if _, err := unix.Pread(got.FD, text, 0); err != nil || string(text) != "canary" || got.ID != h.ID ||
		string(got.Meta) != `{"a":1}` || got.Bytes != deviceGranule {
		t.Errorf("%q, %+v, %v", text, got, err)
	}
	unix.Close(got.FD)
	if list := a.List("", false); len(list) != 1 || list[0].Kind != object.CUDA || list[0].Device != gpuA ||
		list[0].SizeBytes != 5000 {
		t.Errorf("%+v", list)
	}
	st := s.Status()
	if st.UsedBytes != 0 || len(st.Devices) != 1 ||
		st.Devices[0] != (DeviceStatus{Device: gpuA, Objects: 1, Bytes: deviceGranule}) ||
		len(st.Tenants[0].Devices) != 1 || st.OpenSegments != 1 {
		t.Errorf("%+v", st)
	}
	if err := errors.Join(a.Release(h.ID), a.Delete(object.ID{}, "n")); err != nil {
		t.Fatal(err)
	}
	if len(s.Status().Devices) != 1 {
		t.Error("b holds it, and its memory went")
	}
	mustAgree(t, s, true)
	if err := b.Release(h.ID); err != nil {
		t.Fatal(err)
	}
	if st := s.Status(); len(st.Devices) != 0 || st.OpenSegments != 0 || st.TableBytes != 0 {
		t.Errorf("after its end: %+v", st)
	}
	mustAgree(t, s, true)
}

// What such an object cannot be, and who cannot have it, is ErrUnsupported or ErrPermission, and changes nothing.
func TestWhatMemoryOfAGPUCannotBe(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, SpillDir: t.TempDir()})
	c, other := connect(t, s, "x"), connect(t, s, "y")
	id := onGPU(t, c, Spec{SizeBytes: 10, Name: "n", Class: object.Named}, gpuA)
	host := sealedObject(t, c, Spec{SizeBytes: 10})
	stream, err := c.OpenStream(StreamSpec{Name: "s", Writes: true, Reads: true})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(_ any, err error) error { return err }
	open, err := c.CreateDevice(Spec{SizeBytes: 1}, gpuA)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(open.FD)
	persist := Change{Persist: true}
	for what, x := range map[string]struct{ err, want error }{
		"get":               {ask(c.Get(id)), object.ErrUnsupported},
		"lend":              {ask(c.Lend(id, "")), object.ErrUnsupported},
		"read":              {ask(c.Open(id, "")), object.ErrUnsupported},
		"push":              {ask(c.Push(stream.ID, id, 0, nil)), object.ErrUnsupported},
		"share":             {c.Grant(id, "", Everybody, false), object.ErrUnsupported},
		"persist":           {c.Update(id, "", persist), object.ErrUnsupported},
		"strict":            {c.Seal(open.ID, true), object.ErrUnsupported},
		"class persisted":   {ask(c.CreateDevice(Spec{SizeBytes: 1, Name: "p", Class: object.Persisted}, gpuA)), object.ErrUnsupported},
		"checksums":         {ask(c.CreateDevice(Spec{SizeBytes: 1, Checksum: true}, gpuA)), object.ErrUnsupported},
		"fillers":           {ask(c.CreateDevice(Spec{SizeBytes: 1, Shared: true}, gpuA)), object.ErrUnsupported},
		"no bytes":          {ask(c.CreateDevice(Spec{}, gpuA)), object.ErrInvalid},
		"no device":         {ask(c.CreateDevice(Spec{SizeBytes: 1}, object.Device{})), object.ErrInvalid},
		"a host object":     {ask(c.GetDevice(host, "")), object.ErrUnsupported},
		"another tenant's":  {ask(other.GetDevice(id, "")), object.ErrPermission},
		"one that is none":  {ask(c.GetDevice(object.NewID(), "")), object.ErrNotFound},
		"another's by name": {ask(other.GetDevice(object.ID{}, "n")), object.ErrNotFound},
	} {
		if !errors.Is(x.err, x.want) {
			t.Errorf("%s: %v", what, x.err)
		}
	}
	f.gone = object.ErrUnsupported
	wantErr(t, ask(c.CreateDevice(Spec{SizeBytes: 1}, gpuA)), object.ErrUnsupported)
	none := newStore(t, Options{})
	wantErr(t, ask(connect(t, none, "x").CreateDevice(Spec{SizeBytes: 1}, gpuA)), object.ErrUnsupported)
	mustAgree(t, s, true)
	if st := s.Status(); st.Devices[0].Objects != 2 {
		t.Errorf("%+v", st.Devices)
	}
}

func TestMemoryOfAGPUIsCharged(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, TenantDeviceBytes: 2 * deviceGranule, Segments: 64, TenantSegments: 3})
	c := connect(t, s, "x")
	create := func(n uint64, gpu object.Device) error {
		h, err := c.CreateDevice(Spec{SizeBytes: n}, gpu)
		if err == nil {
			unix.Close(h.FD)
		}
		return err
	}
	if err := errors.Join(create(1, gpuA), create(deviceGranule, gpuA)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, create(1, gpuA), object.ErrQuota)
	wantErr(t, create(^uint64(0), gpuB), object.ErrQuota)
	f.real = 4 * deviceGranule // the device gives more than was expected
	wantErr(t, create(1, gpuB), object.ErrQuota)
	f.real = 0
	for _, why := range []error{object.ErrFull, object.ErrNoDevice} {
		f.fail = why
		wantErr(t, create(1, gpuB), why)
	}
	f.fail = nil
	mustAgree(t, s, true)
	if err := create(1, gpuB); err != nil { // a GPU has a bound of its own
		t.Fatal(err)
	}
	wantErr(t, create(1, gpuB), object.ErrLimit) // three descriptors
	other := connect(t, s, "y")
	onGPU(t, other, Spec{SizeBytes: 1}, gpuA)
	mustAgree(t, s, true)
	c.Close() // they were unsealed
	other.Close()
	if st := s.Status(); len(st.Devices) != 0 || st.OpenSegments != 0 || st.ChargedBytes != 0 {
		t.Errorf("%+v", st)
	}
}

// A connection that ends while the driver allocates gets nothing, and nothing stays.
func TestAConnectionEndsDuringAnAllocation(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f})
	c := connect(t, s, "x")
	before := openFiles(t)
	f.during = c.Close
	if _, err := c.CreateDevice(Spec{SizeBytes: 1}, gpuA); err == nil {
		t.Error("an object of a connection that has ended")
	}
	if st := s.Status(); len(st.Devices) != 0 || st.ChargedBytes != 0 {
		t.Errorf("%+v", st)
	}
	mustAgree(t, s, true)
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

// openFiles counts this process's memory of GPUs.
func openFiles(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		if to, err := os.Readlink("/proc/self/fd/" + x.Name()); err == nil && to == "/memfd:device (deleted)" {
			n++
		}
	}
	return n
}

func TestCopyToAndFromAGPU(t *testing.T) {
	f := &fakeDevices{}
	s := newStore(t, Options{Devices: f, SpillDir: t.TempDir()})
	c := connect(t, s, "x")
	text := bytes.Repeat([]byte("0123456789"), 1000)
	from, err := c.Create(Spec{SizeBytes: 10000, Name: "host", Class: object.Named, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	copy(mapHandle(t, from, true).Bytes(), text)
	wantErr(t, c.Copy(from.ID, 0, from.ID, "", 0, 1), object.ErrNotSealed)
	if err := c.Seal(from.ID, false); err != nil {
		t.Fatal(err)
	}
	gpu, err := c.CreateDevice(Spec{SizeBytes: 9000}, gpuA)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(gpu.FD)
	if err := c.Copy(gpu.ID, 10, object.ID{}, "host", 1003, 7000); err != nil {
		t.Fatal(err)
	}
	back, err := c.Create(Spec{SizeBytes: 9000, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	small, err := c.Create(Spec{SizeBytes: 100})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(small)
	memory := mapHandle(t, back, true)
	wantErr(t, c.Copy(back.ID, 0, gpu.ID, "", 0, 1), object.ErrNotSealed)
	if err := c.Seal(gpu.ID, false); err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string]struct{ err, want error }{
		"into a sealed one":      {c.Copy(gpu.ID, 0, from.ID, "", 0, 1), object.ErrSealed},
		"beyond the end":         {c.Copy(back.ID, 0, gpu.ID, "", 9000, 1), object.ErrInvalid},
		"beyond the target":      {c.Copy(back.ID, 8999, gpu.ID, "", 0, 2), object.ErrInvalid},
		"around the end":         {c.Copy(back.ID, ^uint64(0), gpu.ID, "", 0, 2), object.ErrInvalid},
		"both in host memory":    {c.Copy(back.ID, 0, from.ID, "", 0, 1), object.ErrInvalid},
		"a segment with others":  {c.Copy(small.ID, 0, gpu.ID, "", 0, 1), object.ErrInvalid},
		"of nothing":             {c.Copy(back.ID, 0, object.NewID(), "", 0, 1), object.ErrNotFound},
		"into nothing":           {c.Copy(object.NewID(), 0, gpu.ID, "", 0, 1), object.ErrNotFound},
		"of another connection":  {connect(t, s, "x").Copy(back.ID, 0, gpu.ID, "", 0, 1), object.ErrPermission},
		"of another tenant":      {connect(t, s, "y").Copy(back.ID, 0, gpu.ID, "", 0, 1), object.ErrPermission},
		"no bytes, which is all": {c.Copy(back.ID, 9000, gpu.ID, "", 9000, 0), nil},
	} {
		if !errors.Is(x.err, x.want) {
			t.Errorf("%s: %v", what, x.err)
		}
	}
	f.during = func() { // while the driver copies
		wantErr(t, c.Seal(back.ID, false), object.ErrBusy)
	}
	if err := c.Copy(back.ID, 0, gpu.ID, "", 10, 7000); err != nil {
		t.Fatal(err)
	}
	f.during = nil
	if !bytes.Equal(memory.Bytes()[:7000], text[1003:8003]) {
		t.Errorf("what came back begins with %q", memory.Bytes()[:20])
	}
	if err := errors.Join(memory.Unmap(), c.Seal(back.ID, true)); err != nil { // nobody has it writable any more
		t.Error(err)
	}
	f.fail = object.ErrNoDevice
	next, err := c.CreateDevice(Spec{SizeBytes: 1}, gpuA)
	wantErr(t, err, object.ErrNoDevice)
	f.fail = nil
	if next, err = c.CreateDevice(Spec{SizeBytes: 1}, gpuA); err != nil {
		t.Fatal(err)
	}
	unix.Close(next.FD)
	f.during = func() { // both go while the driver copies
		if err := errors.Join(c.Abort(next.ID), c.Release(gpu.ID)); err != nil {
			t.Error(err)
		}
		mustAgree(t, s, false)
	}
	if err := c.Copy(next.ID, 0, gpu.ID, "", 0, 1); err != nil {
		t.Error(err)
	}
	mustAgree(t, s, true)
	if st := s.Status(); len(st.Devices) != 0 {
		t.Errorf("%+v", st.Devices)
	}
	if n := openFiles(t); n != 0 {
		t.Errorf("%d descriptors are left", n)
	}
}

// A source that is on disk comes back first.
func TestCopyOfWhatIsOnDisk(t *testing.T) {
	s := newStore(t, Options{Devices: &fakeDevices{}, SpillDir: t.TempDir(), CapacityBytes: 8 << 20})
	c := connect(t, s, "x")
	id := sealedObject(t, c, Spec{SizeBytes: 2 << 20, Name: "a", Class: object.Named})
	if err := c.Release(id); err != nil {
		t.Fatal(err)
	}
	forceOut(t, s, id)
	gpu, err := c.CreateDevice(Spec{SizeBytes: 10}, gpuA)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(gpu.FD)
	err = c.Copy(gpu.ID, 0, id, "", 0, 10)
	wantErr(t, err, ErrAway)
	if err := c.BringBack(context.Background(), id, ""); err != nil {
		t.Fatal(err)
	}
	if err := c.Copy(gpu.ID, 0, id, "", 0, 10); err != nil {
		t.Error(err)
	}
}

// forceOut has an object go to disk.
func forceOut(t *testing.T, s *Store, id object.ID) {
	t.Helper()
	s.mu.Lock()
	defer s.unlock()
	e := s.objects[id]
	out, _ := s.victims(e.tenant, 1, 0)
	_, err := s.evict(out, s.spill.For(e.tenant.name), nil)
	if err != nil || e.state != object.Spilled {
		t.Fatalf("%v, %v", e.state, err)
	}
}

// The next daemon has the memory, the names, the charges and who holds what; objects on disk and in host memory beside.
func TestHandoffMemoryOfGPUs(t *testing.T) {
	f := &fakeDevices{}
	opts := Options{Devices: f, SpillDir: t.TempDir(), TenantDeviceBytes: 8 * deviceGranule, Segments: 64}
	s := newStore(t, opts)
	c := connect(t, s, "x")
	named := onGPU(t, c, Spec{SizeBytes: 5, Name: "n", Class: object.Named, Labels: map[string]string{"k": "v"}}, gpuA)
	held := onGPU(t, c, Spec{SizeBytes: 6}, gpuB)
	host := sealedObject(t, c, Spec{SizeBytes: 100, Name: "h", Class: object.Named})
	whole, err := c.Compose(Spec{Name: "c", Class: object.Named},
		[]object.Member{{Name: "a", ID: named}, {Name: "b", ID: host}})
	if err != nil {
		t.Fatal(err)
	}
	gone := onGPU(t, c, Spec{SizeBytes: 7, Name: "g", Class: object.Named}, gpuA)
	open, err := c.CreateDevice(Spec{SizeBytes: 8}, gpuA)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(open.FD)
	if err := errors.Join(c.Delete(gone, ""), c.Release(named), c.Release(whole)); err != nil { // gone is held
		t.Fatal(err)
	}
	s.Leave()
	next := handOver(t, s, opts)
	d := connect(t, next, "x")
	h, err := d.GetDevice(object.ID{}, "n")
	if err != nil || h.ID != named || h.Device != gpuA || h.Bytes != deviceGranule || h.Size != 5 {
		t.Fatalf("%+v, %v", h, err)
	}
	unix.Close(h.FD)
	if info, err := d.Stat(whole, ""); err != nil || len(info.Members) != 2 {
		t.Errorf("%+v, %v", info, err)
	}
	if again, _ := d.Reclaim(held, 0); !again {
		t.Error("the orphan's reference is gone")
	}
	for _, id := range []object.ID{gone, open.ID} {
		_, err := d.GetDevice(id, "")
		wantErr(t, err, object.ErrNotFound)
	}
	if st := next.Status(); len(st.Devices) != 2 ||
		st.Devices[0] != (DeviceStatus{Device: gpuA, Objects: 1, Bytes: deviceGranule}) {
		t.Errorf("%+v", st.Devices)
	}
	mustAgree(t, next, true)
	for _, orphan := range next.Orphans() {
		orphan.Close()
	}
	if err := errors.Join(d.Release(held), d.Release(named), d.Delete(whole, ""), d.Delete(named, "")); err != nil {
		t.Fatal(err)
	}
	if st := next.Status(); len(st.Devices) != 0 {
		t.Errorf("%+v", st.Devices)
	}
	if n := openFiles(t); n != 0 {
		t.Errorf("%d descriptors are left", n)
	}
}

// A catalog that lies about memory of GPUs makes no store, and leaves no descriptor.
func TestACatalogThatLiesAboutGPUs(t *testing.T) {
	for what, lie := range map[string]func(*handoff.Catalog){
		"more bytes than the allocation has": func(c *handoff.Catalog) { c.DeviceMemory[0].Bytes = 1 },
		"no device":                          func(c *handoff.Catalog) { c.DeviceMemory[0].Device = object.Device{} },
		"an object cut short":                func(c *handoff.Catalog) { c.DeviceObjects = c.DeviceObjects[:20] },
		"the same object twice": func(c *handoff.Catalog) {
			c.DeviceObjects = append(c.DeviceObjects[:len(c.DeviceObjects)/2:len(c.DeviceObjects)/2],
				c.DeviceObjects[:len(c.DeviceObjects)/2]...)
		},
	} {
		s := newStore(t, Options{Devices: &fakeDevices{}})
		c := connect(t, s, "x")
		onGPU(t, c, Spec{SizeBytes: 5, Name: "a", Class: object.Named}, gpuA)
		onGPU(t, c, Spec{SizeBytes: 5, Name: "b", Class: object.Named}, gpuA)
		s.Leave()
		l := s.Handoff()
		lie(&l.Catalog)
		if next, err := New(Options{CapacityBytes: 64 << 20, Handoff: l}); !errors.Is(err, object.ErrProtocol) {
			t.Errorf("%s: %v", what, err)
			if next != nil {
				next.Close()
			}
		}
		if n := openFiles(t); n != 0 {
			t.Errorf("%s: %d descriptors are left", what, n)
		}
	}
	few := &handoff.State{Catalog: handoff.Catalog{DeviceMemory: make([]handoff.Device, 2)}}
	wantErr(t, few.TakeDevices(nil), object.ErrProtocol)
}

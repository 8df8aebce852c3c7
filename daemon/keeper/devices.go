package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"tendril/store"
	"tendril/store/object"
)

// OpenCL is a platform whose devices' memory a keeper makes.
type OpenCL struct {
	ICD      string         // the file that names the driver
	Platform int            // its position in the driver's list
	Devices  map[string]int // positions in the platform's list, by UUID
}

// arguments are those of the verb keeper. Two platforms with the same ones are the same.
func (o *OpenCL) arguments() []string {
	var devices []string
	for _, uuid := range slices.Sorted(maps.Keys(o.Devices)) {
		devices = append(devices, uuid+"="+strconv.Itoa(o.Devices[uuid]))
	}
	return []string{"--opencl", o.ICD, "--platform", strconv.Itoa(o.Platform), "--device", strings.Join(devices, ",")}
}

// name is those in one word.
func (o *OpenCL) name() string { return strings.Join(o.arguments(), " ") }

// Devices is the memory of all devices of a node, for its store: of GPUs through the CUDA driver, by one keeper, and
// of every other OpenCL device by a keeper for each platform. A GPU that both show is CUDA's: one memory has one
// keeper, one charge, and the better way. Safe for concurrent use.
//
// Locks: mu is a leaf.
type Devices struct {
	cuda      *Keeper
	opts      Options
	platforms func(context.Context) ([]OpenCL, error) // waits for the first probe
	now       func() []OpenCL                         // those that are known

	ctx context.Context // ends with Close
	end context.CancelFunc

	mu     sync.Mutex // guards what follows
	gpus   map[object.Device]bool
	opencl map[string]*Keeper        // by their platforms' arguments
	found  map[object.Device]*Keeper // of opencl: where those are that were asked for, as far as is known
	closed bool
}

// NewDevices makes Devices of the keeper of CUDA memory, which the caller closes, and of the platforms that the node
// offers: platforms waits for the first probe, now does not. Options are those of the keepers that it makes. The caller
// must Close it.
func NewDevices(cuda *Keeper, o Options, platforms func(context.Context) ([]OpenCL, error),
	now func() []OpenCL) *Devices {
	d := &Devices{cuda: cuda, opts: o, platforms: platforms, now: now, gpus: map[object.Device]bool{},
		opencl: map[string]*Keeper{}, found: map[object.Device]*Keeper{}}
	d.ctx, d.end = context.WithCancel(context.Background())
	return d
}

// Close ends the keepers of OpenCL platforms.
func (d *Devices) Close() {
	d.end()
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	for _, k := range d.keepers() {
		k.Close()
	}
}

// keepers are those of OpenCL platforms that were made, in an order that stays.
func (d *Devices) keepers() (list []*Keeper) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(d.opencl)) {
		list = append(list, d.opencl[name])
	}
	return list
}

// Status describes the keepers of OpenCL platforms that were started.
func (d *Devices) Status() (list []*Status) {
	for _, k := range d.keepers() {
		if s := k.Status(); s != nil {
			list = append(list, s)
		}
	}
	return list
}

// Available says why there is no memory of devices: ErrUnsupported. An OpenCL device may turn out not to be there when
// it is asked for.
func (d *Devices) Available() error {
	if d.opts.Driver == None {
		return d.cuda.Available()
	}
	return nil
}

// Kind is what kind of object lies in a device's memory: OpenCL, or CUDA, also of a device that is not there. With wait
// it waits for the first probe of the drivers; without, it says what is known.
func (d *Devices) Kind(device object.Device, wait bool) object.Kind {
	if wait {
		if k, _ := d.find(device); k != d.cuda {
			return object.OpenCL
		}
		return object.CUDA
	}
	d.mu.Lock()
	found, gpu := d.found[device] != nil, d.gpus[device]
	d.mu.Unlock()
	if found || !gpu && platformOf(d.now(), device) != nil {
		return object.OpenCL
	}
	return object.CUDA
}

func platformOf(list []OpenCL, device object.Device) *OpenCL {
	for i := range list {
		if _, is := list[i].Devices[device.String()]; is {
			return &list[i]
		}
	}
	return nil
}

// find gives a device's keeper; CUDA's where no OpenCL platform has it, and then why.
func (d *Devices) find(device object.Device) (*Keeper, error) {
	if k := d.settled(device); k != nil {
		return k, nil
	}
	if d.opts.Driver == None || d.isGPU(device) {
		return d.cuda, nil
	}
	list, err := d.platforms(d.ctx)
	switch {
	case d.ctx.Err() != nil:
		return d.cuda, store.ErrDevicesEnded
	case err != nil:
		return d.cuda, err
	}
	if platform := platformOf(list, device); platform != nil {
		return d.keeperOf(platform, device)
	}
	return d.cuda, fmt.Errorf("%w: no driver of this node shows device %s to it", object.ErrUnsupported, device)
}

// settled gives the keeper of a device that is of kind opencl; nil: it was not asked for yet. A device that came back
// elsewhere has another keeper, which makes what it lacks of the twins. One that no driver shows keeps its keeper,
// which says so itself.
func (d *Devices) settled(device object.Device) *Keeper {
	d.mu.Lock()
	k := d.found[device]
	d.mu.Unlock()
	if k == nil {
		return nil
	}
	platform := platformOf(d.now(), device)
	if platform == nil || platform.name() == k.opts.OpenCL.name() {
		return k
	}
	other, err := d.keeperOf(platform, device)
	if err != nil {
		return k // it was closed, and says so itself
	}
	return other
}

// isGPU says whether the CUDA driver has a device.
func (d *Devices) isGPU(device object.Device) bool {
	d.mu.Lock()
	is := d.gpus[device]
	d.mu.Unlock()
	if is || d.cuda.Available() != nil {
		return is
	}
	list, err := d.cuda.All()
	d.mu.Lock()
	for _, g := range list {
		if x, err := object.ParseDevice(g.UUID); err == nil {
			d.gpus[x] = true
		}
	}
	is = d.gpus[device]
	d.mu.Unlock()
	if !is {
		d.cuda.ProbeOver() // who asks for another's memory needs no keeper of CUDA's
	}
	return is || err != nil // what its driver does not say now is not another's to give
}

// keeperOf gives a platform's keeper, which starts with its first request. A device's keeper before it, which has no
// other device any more, ends.
func (d *Devices) keeperOf(platform *OpenCL, device object.Device) (*Keeper, error) {
	name := platform.name()
	var before *Keeper
	defer func() {
		if before != nil {
			before.abandon()
		}
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.cuda, store.ErrDevicesEnded
	}
	k := d.opencl[name]
	if k == nil {
		o := d.opts
		o.OpenCL, o.Offers = platform, nil // those that are not offered are in no platform
		k = New(o)
		d.opencl[name] = k
	}
	before = d.found[device]
	d.found[device] = k
	for _, of := range d.found {
		if of == before {
			before = nil
			break
		}
	}
	return k, nil
}

// Allocate makes zeroed memory of a device, as Keeper.Allocate.
func (d *Devices) Allocate(who store.Asker, device object.Device, bytes uint64) (fd int, real uint64, err error) {
	k, why := d.find(device)
	if errors.Is(why, store.ErrDevicesEnded) {
		return -1, 0, why
	}
	fd, real, err = k.Allocate(who, device, bytes)
	if err != nil && why != nil && d.cuda.Available() != nil {
		err = fmt.Errorf("%w (%w)", why, err)
	}
	return fd, real, err
}

// Copy copies bytes from one place to another, as Keeper.Copy. The descriptor of OpenCL memory is a memfd with the same
// bytes: so where the two places have different keepers, one of them sees the other's place as host memory. And what no
// keeper reads from its device any more, because that or its driver is gone, is read from there.
func (d *Devices) Copy(who store.Asker, to, from store.Place, bytes uint64) error {
	writes, gone := d.of(to)
	if gone != nil {
		return gone
	}
	reads, gone := d.of(from)
	twin := from
	twin.Device = object.Device{}
	err := gone
	switch {
	case reads == nil && writes != nil: // from host memory, or from the twin of a device that is gone
		return writes.Copy(who, to, twin, bytes)
	case writes == nil && gone == nil && reads != nil, writes != nil && reads == writes:
		if err = reads.Copy(who, to, from, bytes); err == nil || from.Kind != object.OpenCL || !isDrivers(err) {
			return err
		}
	case writes != nil && from.Kind == object.OpenCL:
		return writes.Copy(who, to, twin, bytes)
	case writes != nil:
		return d.acrossTwin(who, reads, writes, to, from, bytes)
	}
	if writes != nil {
		return writes.Copy(who, to, twin, bytes)
	}
	d.opts.Log.WithError(err).Warn("memory of an OpenCL device is read from its twin in host memory")
	return store.CopyHost(who, to, from, bytes)
}

// acrossTwin copies from a GPU of CUDA's to an OpenCL device: to its twin, and from there.
func (d *Devices) acrossTwin(who store.Asker, reads, writes *Keeper, to, from store.Place, bytes uint64) error {
	twin := to
	twin.Device = object.Device{}
	if err := reads.Copy(who, twin, from, bytes); err != nil {
		return err
	}
	defer reads.Forget(twin.FD)
	return writes.Copy(who, to, twin, bytes)
}

// isDrivers says whether an error is of a device or its driver, and not of who asks or of this daemon's end.
func isDrivers(err error) bool {
	return !errors.Is(err, store.ErrDevicesEnded) && !errors.Is(err, object.ErrTimeout)
}

// of is a place's keeper; nil: it is in host memory, or it is a twin, and gone says why its device has no keeper.
func (d *Devices) of(p store.Place) (k *Keeper, gone error) {
	if p.Device.IsZero() {
		return nil, nil
	}
	k, err := d.find(p.Device) // a GPU that is gone answers so itself
	switch {
	case errors.Is(err, store.ErrDevicesEnded):
		return nil, err
	case p.Kind != object.OpenCL || k != d.cuda:
		return k, nil
	case err == nil:
		err = fmt.Errorf("%w: device %s, whose memory was an OpenCL driver's, is a GPU of the CUDA driver's now",
			object.ErrUnsupported, p.Device)
	}
	return nil, err
}

// Forget has every keeper let go of memory: a segment that goes, or OpenCL memory whose object is gone.
func (d *Devices) Forget(fd int) {
	d.cuda.Forget(fd)
	for _, k := range d.keepers() {
		k.Forget(fd)
	}
}

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
	found  map[object.Device]*Keeper // of opencl, of those that were asked for
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
	d.mu.Lock()
	k := d.found[device]
	d.mu.Unlock()
	if k != nil {
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

// keeperOf gives a platform's keeper, which starts with its first request.
func (d *Devices) keeperOf(platform *OpenCL, device object.Device) (*Keeper, error) {
	name := strings.Join(platform.arguments(), " ")
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
	d.found[device] = k
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
// bytes: so where the two places have different keepers, one of them sees the other's place as host memory.
func (d *Devices) Copy(who store.Asker, to, from store.Place, bytes uint64) error {
	writes, reads := d.of(to), d.of(from)
	switch {
	case writes == nil:
		return reads.Copy(who, to, from, bytes)
	case reads == nil || reads == writes:
		return writes.Copy(who, to, from, bytes)
	case reads != d.cuda:
		from.Device = object.Device{}
		return writes.Copy(who, to, from, bytes)
	}
	twin := to
	twin.Device = object.Device{}
	if err := reads.Copy(who, twin, from, bytes); err != nil {
		return err
	}
	defer reads.Forget(twin.FD)
	return writes.Copy(who, to, twin, bytes)
}

// of is a place's keeper; nil: it is in host memory.
func (d *Devices) of(p store.Place) *Keeper {
	if p.Device.IsZero() {
		return nil
	}
	k, _ := d.find(p.Device) // one that is gone answers so itself
	return k
}

// Forget has every keeper let go of memory: a segment that goes, or OpenCL memory whose object is gone.
func (d *Devices) Forget(fd int) {
	d.cuda.Forget(fd)
	for _, k := range d.keepers() {
		k.Forget(fd)
	}
}

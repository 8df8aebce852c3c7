package session

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

var rgba = api.ImageFormat{Order: cl.RGBA, DataType: cl.UNORM_INT8}

// image makes an image of elements of 4 bytes; parent 0: of its own memory.
func (r *rig) image(desc api.ImageDesc, flags uint64, host api.HostPtr) uintptr {
	r.t.Helper()
	return r.handle(r.d.CreateImage(r.ctx, nil, flags, &rgba, &desc, host))
}

// picture is what an image should hold, in the layout of its memory: x in bytes.
type picture struct {
	data   []byte
	extent [3]uint64
}

func (p *picture) rows(origin, region [3]uint64, f func(row []byte)) {
	(&fakeBuffer{data: p.data, extent: p.extent}).rows(inBytes(origin), inBytes(region), f)
}

func region(rng *rand.Rand, extent [3]uint64) (r api.ImageRegion) {
	for i, n := range [3]uint64{extent[0] / 4, extent[1], extent[2]} {
		r.Origin[i] = rng.Uint64N(n)
		r.Region[i] = 1 + rng.Uint64N(n-r.Origin[i])
	}
	return r
}

// TestImages: random commands of images leave what copies by hand leave, for images of the driver's memory and for
// those in a buffer, where that is shared memory and where it is not.
func TestImages(t *testing.T) {
	inAndOutOfPlace(t, func(t *testing.T, inPlace bool) {
		r := newRig(t, inPlace)
		q, rng := r.queue(0), rand.New(rand.NewPCG(1, 2))
		solid := picture{make([]byte, 4*20*9*5), [3]uint64{80, 9, 5}}
		flat := picture{make([]byte, 4*16*8), [3]uint64{64, 8, 1}}
		under := r.buffer(uint64(len(flat.data)))
		pictures := []*picture{&solid, &flat}
		images := []uintptr{
			r.image(api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE3D, Width: 20, Height: 9, Depth: 5}, 0, api.HostPtr{}),
			r.image(api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 16, Height: 8, Parent: under}, 0, api.HostPtr{}),
		}
		r.handle(r.d.EnqueueFill(q, under, ptr([]byte{0}), 1, 0, uint64(len(flat.data)), api.Waits{}))
		plain := make([]byte, 4*20*9*5)
		buffer := r.buffer(uint64(len(plain)))
		r.handle(r.d.EnqueueFill(q, buffer, ptr([]byte{0}), 1, 0, uint64(len(plain)), api.Waits{}))
		for step := range 300 {
			i := rng.IntN(2)
			p, image, where := pictures[i], images[i], region(rng, pictures[i].extent)
			size := 4 * where.Region[0] * where.Region[1] * where.Region[2]
			switch blocking := rng.IntN(2) == 0; rng.IntN(6) {
			case 0:
				in := pattern(int(size), byte(step))
				r.handle(r.d.EnqueueWriteImage(q, image, blocking, where, 0, 0, ptr(in), api.Waits{}))
				p.rows(where.Origin, where.Region, func(row []byte) { in = in[copy(row, in):] })
			case 1:
				out, want := make([]byte, size), []byte(nil)
				r.handle(r.d.EnqueueReadImage(q, image, blocking, where, 0, 0, ptr(out), api.Waits{}))
				r.ok(r.d.Finish(q))
				p.rows(where.Origin, where.Region, func(row []byte) { want = append(want, row...) })
				if !bytes.Equal(out, want) {
					t.Fatalf("step %d: other bytes of image %d", step, i)
				}
			case 2:
				color := bytes.Repeat([]byte{byte(step)}, 16)
				r.handle(r.d.EnqueueFillImage(q, image, ptr(color), where, api.Waits{}))
				p.rows(where.Origin, where.Region, func(row []byte) { copy(row, bytes.Repeat(color, len(row)/16+1)) })
			case 3:
				off := rng.Uint64N(uint64(len(plain)) - size + 1)
				toBuffer := rng.IntN(2) == 0
				r.handle(r.d.EnqueueCopyImageBuffer(toBuffer, q, image, buffer, where, off, api.Waits{}))
				dense := plain[off:]
				p.rows(where.Origin, where.Region, func(row []byte) {
					if toBuffer {
						copy(dense, row)
					} else {
						copy(row, dense)
					}
					dense = dense[len(row):]
				})
			case 4:
				other := region(rng, flat.extent)
				from := api.ImageRegion{Region: other.Region}
				r.handle(r.d.EnqueueCopyImage(q, images[0], images[1], from, other.Origin, api.Waits{}))
				var dense []byte
				solid.rows([3]uint64{}, other.Region, func(row []byte) { dense = append(dense, row...) })
				flat.rows(other.Origin, other.Region, func(row []byte) { dense = dense[copy(row, dense):] })
			case 5:
				m, status := r.d.EnqueueMapImage(q, image, true, cl.MAP_READ|cl.MAP_WRITE, where, true, api.Waits{})
				r.ok(status)
				y := uint64(0)
				p.rows(where.Origin, where.Region, func(row []byte) {
					at := y/where.Region[1]*m.Slice + y%where.Region[1]*m.Row
					shown := m.At.Bytes(at, uint64(len(row)))
					if !bytes.Equal(shown, row) {
						t.Fatalf("step %d: a map of image %d shows other bytes", step, i)
					}
					copy(shown, pattern(len(row), byte(step)))
					copy(row, shown)
					y++
				})
				r.handle(r.d.EnqueueUnmap(q, image, m.At, api.Waits{}))
			}
		}
		r.ok(r.d.Finish(q))
	})
}

// TestImageOverHostMemory: an image over the program's memory takes it, and brings results back.
func TestImageOverHostMemory(t *testing.T) {
	r := newRig(t, false)
	q, mine := r.queue(0), pattern(4*8*4, 3)
	image := r.image(api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 8, Height: 4}, cl.MEM_USE_HOST_PTR, ptr(mine))
	out, all := make([]byte, len(mine)), api.ImageRegion{Region: [3]uint64{8, 4, 1}}
	r.handle(r.d.EnqueueReadImage(q, image, true, all, 0, 0, ptr(out), api.Waits{}))
	if !bytes.Equal(out, mine) {
		t.Error("the image has other bytes than the program's memory")
	}
	r.handle(r.d.EnqueueFillImage(q, image, ptr(bytes.Repeat([]byte{9}, 16)), all, api.Waits{}))
	m, status := r.d.EnqueueMapImage(q, image, true, cl.MAP_READ, all, false, api.Waits{})
	if r.ok(status); m.At.Address() != ptr(mine).Address() || mine[0] != 9 || mine[len(mine)-1] != 9 {
		t.Errorf("a map brought %d and %d", mine[0], mine[len(mine)-1])
	}
	r.handle(r.d.EnqueueUnmap(q, image, m.At, api.Waits{}))
	copied := r.image(api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 8, Height: 4}, cl.MEM_COPY_HOST_PTR, ptr(mine))
	r.handle(r.d.EnqueueReadImage(q, copied, true, all, 0, 0, ptr(out), api.Waits{}))
	if !bytes.Equal(out, mine) {
		t.Error("a new image has other bytes than it was given")
	}
	r.ok(r.d.ReleaseMemObject(image))
	r.ok(r.d.ReleaseMemObject(copied))
}

// TestLinearImages: copies of images that lie in a buffer, element by element, are copies of the buffer.
func TestLinearImages(t *testing.T) {
	r := newRig(t, true)
	q, a, b := r.queue(0), r.buffer(400), r.buffer(400)
	in, out := pattern(400, 2), make([]byte, 400)
	r.handle(r.d.EnqueueWrite(q, a, true, 0, 400, ptr(in), api.Waits{}))
	linear := api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE1D_BUFFER, Width: 100}
	linear.Parent = a
	from := r.image(linear, 0, api.HostPtr{})
	linear.Parent = b
	to := r.image(linear, 0, api.HostPtr{})
	some := api.ImageRegion{Origin: [3]uint64{10, 0, 0}, Region: [3]uint64{50, 1, 1}}
	r.handle(r.d.EnqueueCopyImage(q, from, to, some, [3]uint64{20, 0, 0}, api.Waits{}))
	r.handle(r.d.EnqueueRead(q, b, true, 80, 200, ptr(out), api.Waits{}))
	if !bytes.Equal(out[:200], in[40:240]) {
		t.Error("other bytes were copied")
	}
	_, status := r.d.EnqueueCopyImage(q, from, from, some, [3]uint64{20, 0, 0}, api.Waits{})
	r.is(status, cl.MEM_COPY_OVERLAP)
	r.handle(r.d.EnqueueCopyImageBuffer(true, q, from, b, some, 0, api.Waits{}))
	r.handle(r.d.EnqueueRead(q, b, true, 0, 200, ptr(out), api.Waits{}))
	if !bytes.Equal(out[:200], in[40:240]) {
		t.Error("other bytes were copied to a buffer")
	}
	plane := r.image(api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 50, Height: 1}, 0, api.HostPtr{})
	r.handle(r.d.EnqueueCopyImage(q, from, plane, some, [3]uint64{}, api.Waits{}))
	r.handle(r.d.EnqueueCopyImage(q, plane, to, api.ImageRegion{Region: [3]uint64{50, 1, 1}}, [3]uint64{}, api.Waits{}))
	r.handle(r.d.EnqueueRead(q, b, true, 0, 200, ptr(out), api.Waits{}))
	if !bytes.Equal(out[:200], in[40:240]) {
		t.Error("other bytes were copied by way of an image of the driver's")
	}
}

// TestWrongImages: what the specification refuses, with its codes.
func TestWrongImages(t *testing.T) {
	r := newRig(t, true)
	plane := api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 8, Height: 4}
	create := func(given []uint64, flags uint64, f *api.ImageFormat, d *api.ImageDesc, host api.HostPtr) api.Status {
		_, status := r.d.CreateImage(r.ctx, given, flags, f, d, host)
		return status
	}
	mips, overBuffer, overNothing := plane, plane, plane
	mips.MipLevels, overBuffer.Parent, overNothing.Parent = 2, r.buffer(100), 77
	mine := ptr(make([]byte, 200))
	r.is(create([]uint64{5}, 0, &rgba, &plane, api.HostPtr{}), cl.INVALID_PROPERTY)
	r.is(create(nil, 1<<40, &rgba, &plane, api.HostPtr{}), cl.INVALID_VALUE)
	r.is(create(nil, 0, nil, &plane, api.HostPtr{}), cl.INVALID_IMAGE_FORMAT_DESCRIPTOR)
	r.is(create(nil, 0, &rgba, nil, api.HostPtr{}), cl.INVALID_IMAGE_DESCRIPTOR)
	r.is(create(nil, 0, &rgba, &mips, api.HostPtr{}), cl.INVALID_IMAGE_DESCRIPTOR)
	r.is(create(nil, 0, &rgba, &plane, mine), cl.INVALID_HOST_PTR)
	r.is(create(nil, 0, &rgba, &overBuffer, api.HostPtr{}), cl.INVALID_IMAGE_SIZE)
	r.is(create(nil, 0, &rgba, &overNothing, api.HostPtr{}), cl.INVALID_MEM_OBJECT)
	_, status := r.d.CreateImage(77, nil, 0, &rgba, &plane, api.HostPtr{})
	r.is(status, cl.INVALID_CONTEXT)
	q, image := r.queue(0), r.image(plane, 0, api.HostPtr{})
	outside := api.ImageRegion{Region: [3]uint64{9, 1, 1}}
	_, status = r.d.EnqueueReadImage(q, image, true, outside, 0, 0, mine, api.Waits{})
	r.is(status, cl.INVALID_VALUE)
	_, status = r.d.EnqueueWriteImage(q, r.buffer(8), true, outside, 0, 0, mine, api.Waits{})
	r.is(status, cl.INVALID_MEM_OBJECT)
	_, status = r.d.EnqueueFillImage(q, image, mine, outside, api.Waits{})
	r.is(status, cl.INVALID_VALUE)
	_, status = r.d.EnqueueMapImage(q, image, true, cl.MAP_READ, outside, true, api.Waits{})
	r.is(status, cl.INVALID_VALUE)
	_, status = r.d.EnqueueRead(q, image, true, 0, 1, mine, api.Waits{})
	r.is(status, cl.INVALID_MEM_OBJECT)
}

// TestImagesLikeEarlier: the driver is asked of the first image of a kind alone. The worker hears of another when a
// command uses it.
func TestImagesLikeEarlier(t *testing.T) {
	r := newRig(t, false)
	q, plane := r.queue(0), api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 8, Height: 4}
	records := func(do func()) int32 {
		r.ok(r.d.Finish(q))
		before := r.worker().records.Load()
		do()
		r.ok(r.d.Finish(q))
		return r.worker().records.Load() - before
	}
	var made []uintptr // released at the end: a release is a record that may come late
	create := func(desc api.ImageDesc, host api.HostPtr, flags uint64) func() {
		return func() { made = append(made, r.image(desc, flags, host)) }
	}
	none := records(func() {})
	if first := records(create(plane, api.HostPtr{}, 0)); first == none {
		t.Fatal("the driver was not asked of the first image")
	}
	if again := records(create(plane, api.HostPtr{}, 0)); again != none {
		t.Errorf("another such image: %d records", again-none)
	}
	wide := plane
	wide.Width = 9
	for name, do := range map[string]func(){"another size": create(wide, api.HostPtr{}, 0),
		"other access": create(plane, api.HostPtr{}, cl.MEM_READ_ONLY)} {
		if records(do) == none {
			t.Errorf("%s: the driver was not asked", name)
		}
	}
	mine, got := pattern(8*4*4, 5), make([]byte, 8*4*4)
	image := r.image(plane, cl.MEM_COPY_HOST_PTR, ptr(mine))
	where := api.ImageRegion{Region: [3]uint64{8, 4, 1}}
	r.handle(r.d.EnqueueReadImage(q, image, true, where, 0, 0, ptr(got), api.Waits{}))
	if !bytes.Equal(got, mine) {
		t.Error("other bytes in an image with first contents")
	}
	for _, image := range append(made, image) {
		r.ok(r.d.ReleaseMemObject(image))
	}
}

// TestImageAnswers: queries of images and samplers.
func TestImageAnswers(t *testing.T) {
	r := newRig(t, true)
	image := r.image(api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE3D, Width: 20, Height: 9, Depth: 5}, 0, api.HostPtr{})
	for param, want := range map[uint32]uint64{
		cl.IMAGE_ELEMENT_SIZE: 4, cl.IMAGE_ROW_PITCH: 80, cl.IMAGE_SLICE_PITCH: 720, cl.IMAGE_WIDTH: 20,
		cl.IMAGE_HEIGHT: 9, cl.IMAGE_DEPTH: 5, cl.IMAGE_ARRAY_SIZE: 0, cl.IMAGE_BUFFER: 0, cl.IMAGE_NUM_MIP_LEVELS: 0,
		cl.IMAGE_FORMAT: uint64(cl.UNORM_INT8)<<32 | cl.RGBA,
	} {
		data, status := r.d.ImageInfo(image, param)
		if got := answers.Number(data); status != cl.SUCCESS || got != want {
			t.Errorf("%#x: %d, status %d, want %d", param, got, status, want)
		}
	}
	data, status := r.d.MemObjectInfo(image, cl.MEM_TYPE)
	if r.ok(status); answers.Number(data) != cl.MEM_OBJECT_IMAGE3D {
		t.Errorf("an image's type is %x", data)
	}
	_, status = r.d.ImageInfo(image, 77)
	r.is(status, cl.INVALID_VALUE)
	_, status = r.d.ImageInfo(r.buffer(8), cl.IMAGE_WIDTH)
	r.is(status, cl.INVALID_MEM_OBJECT)
	for range 2 { // the second time without a question
		list, status := r.d.ImageFormats(r.ctx, cl.MEM_READ_WRITE, cl.MEM_OBJECT_IMAGE2D)
		if r.ok(status); len(list) != 1 || list[0] != rgba {
			t.Errorf("formats %v", list)
		}
	}
	_, status = r.d.ImageFormats(r.ctx, cl.MEM_READ_WRITE, 77)
	r.is(status, cl.INVALID_VALUE)

	s := r.handle(r.d.CreateSampler(r.ctx, 1, cl.ADDRESS_REPEAT, cl.FILTER_LINEAR))
	for param, want := range map[uint32]uint64{
		cl.SAMPLER_REFERENCE_COUNT: 1, cl.SAMPLER_CONTEXT: uint64(r.ctx), cl.SAMPLER_NORMALIZED_COORDS: 1,
		cl.SAMPLER_ADDRESSING_MODE: cl.ADDRESS_REPEAT, cl.SAMPLER_FILTER_MODE: cl.FILTER_LINEAR,
	} {
		data, status := r.d.SamplerInfo(s, param)
		if got := answers.Number(data); status != cl.SUCCESS || got != want {
			t.Errorf("%#x: %d, status %d, want %d", param, got, status, want)
		}
	}
	again := r.handle(r.d.CreateSamplerWithProperties(r.ctx, []uint64{cl.SAMPLER_NORMALIZED_COORDS, 0, 0}))
	_, status = r.d.CreateSamplerWithProperties(r.ctx, []uint64{77, 1, 0})
	r.is(status, cl.INVALID_VALUE)
	_, status = r.d.CreateSampler(r.ctx, 0, cl.ADDRESS_REPEAT, cl.FILTER_LINEAR)
	r.is(status, cl.INVALID_VALUE)
	k := r.kernel("kernel nop image2d_t sampler_t")
	r.setMem(k, 0, r.image(api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 8, Height: 4}, 0, api.HostPtr{}))
	r.setMem(k, 1, s)
	r.launch(r.queue(0), k, api.Waits{})
	r.ok(r.d.RetainSampler(s))
	for _, h := range []uintptr{s, s, again} {
		r.ok(r.d.ReleaseSampler(h))
	}
	r.is(r.d.ReleaseSampler(again), cl.INVALID_SAMPLER)
}

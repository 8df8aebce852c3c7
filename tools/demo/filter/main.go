// Command filter finds the edges of a photograph with OpenCL: a Gaussian blur,
// then Sobel. It is written against github.com/jgillich/go-opencl alone and
// knows nothing of Tendril: it is the demonstration's unmodified program.
package main

import (
	"bufio"
	_ "embed"
	"flag"
	"fmt"
	"image"
	"image/draw"
	_ "image/jpeg"
	_ "image/png"
	"io"
	"os"
	"time"

	"github.com/jgillich/go-opencl/cl"
)

//go:embed edges.cl
var source string

func main() {
	in := flag.String("in", "-", "photograph to read, JPEG or PNG (-: standard input)")
	out := flag.String("out", "", "file for the edges: width × height bytes, one a pixel")
	device := flag.Int("device", 0, "index of the device, counted over all platforms")
	flag.Parse()
	if err := run(*in, *out, *device); err != nil {
		fmt.Fprintln(os.Stderr, "filter:", err)
		os.Exit(1)
	}
}

func run(in, out string, index int) error {
	photo, err := load(in)
	if err != nil {
		return err
	}
	device, err := pick(index)
	if err != nil {
		return err
	}
	start := time.Now()
	edges, err := filter(device, photo)
	if err != nil {
		return fmt.Errorf("%s: %w", device.Name(), err)
	}
	fmt.Printf("%dx%d on %s in %.1f ms\n", photo.Rect.Dx(), photo.Rect.Dy(), device.Name(),
		time.Since(start).Seconds()*1e3)
	if out == "" {
		return nil
	}
	return os.WriteFile(out, edges, 0o644)
}

// load decodes a photograph into 8-bit RGBA.
func load(name string) (*image.RGBA, error) {
	var r io.Reader = os.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r = f
	}
	img, _, err := image.Decode(bufio.NewReader(r))
	if err != nil {
		return nil, fmt.Errorf("%s is no JPEG or PNG: %w", name, err)
	}
	photo := image.NewRGBA(image.Rect(0, 0, img.Bounds().Dx(), img.Bounds().Dy()))
	draw.Draw(photo, photo.Rect, img, img.Bounds().Min, draw.Src)
	return photo, nil
}

func pick(index int) (*cl.Device, error) {
	platforms, err := cl.GetPlatforms()
	if err != nil {
		return nil, fmt.Errorf("no OpenCL platform: %w", err)
	}
	var all []*cl.Device
	for _, p := range platforms {
		if devices, err := p.GetDevices(cl.DeviceTypeAll); err == nil {
			all = append(all, devices...)
		}
	}
	if index < 0 || index >= len(all) {
		return nil, fmt.Errorf("no device %d: there are %d", index, len(all))
	}
	return all[index], nil
}

// filter runs the three kernels and returns one byte a pixel.
func filter(device *cl.Device, photo *image.RGBA) ([]byte, error) {
	s, err := newSession(device)
	if err != nil {
		return nil, err
	}
	defer s.close()
	width, height := photo.Rect.Dx(), photo.Rect.Dy()
	pixels := width * height
	rgba, err := s.context.CreateBuffer(cl.MemReadOnly|cl.MemCopyHostPtr, photo.Pix)
	if err != nil {
		return nil, err
	}
	defer rgba.Release()
	grey, err := s.context.CreateEmptyBuffer(cl.MemReadWrite, pixels*4)
	if err != nil {
		return nil, err
	}
	defer grey.Release()
	blurred, err := s.context.CreateEmptyBuffer(cl.MemReadWrite, pixels*4)
	if err != nil {
		return nil, err
	}
	defer blurred.Release()
	edges, err := s.context.CreateEmptyBuffer(cl.MemWriteOnly, pixels)
	if err != nil {
		return nil, err
	}
	defer edges.Release()

	w, h := int32(width), int32(height)
	for _, step := range []struct {
		kernel string
		args   []any
	}{
		{"luminance", []any{rgba, grey, w, h}},
		{"blur", []any{grey, blurred, w, h, int32(1), int32(0)}},
		{"blur", []any{blurred, grey, w, h, int32(0), int32(1)}},
		{"sobel", []any{grey, edges, w, h}},
	} {
		if err := s.launch(step.kernel, width, height, step.args); err != nil {
			return nil, err
		}
	}
	return s.read(edges, pixels)
}

// session is what every OpenCL program sets up.
type session struct {
	context *cl.Context
	queue   *cl.CommandQueue
	program *cl.Program
}

func newSession(device *cl.Device) (*session, error) {
	s := &session{}
	var err error
	if s.context, err = cl.CreateContext([]*cl.Device{device}); err != nil {
		return nil, err
	}
	if s.queue, err = s.context.CreateCommandQueue(device, 0); err != nil {
		return nil, err
	}
	if s.program, err = s.context.CreateProgramWithSource([]string{source}); err != nil {
		return nil, err
	}
	return s, s.program.BuildProgram([]*cl.Device{device}, "")
}

func (s *session) close() {
	s.program.Release()
	s.queue.Release()
	s.context.Release()
}

func (s *session) launch(name string, width, height int, args []any) error {
	kernel, err := s.program.CreateKernel(name)
	if err != nil {
		return fmt.Errorf("kernel %s: %w", name, err)
	}
	defer kernel.Release()
	if err := kernel.SetArgs(args...); err != nil {
		return fmt.Errorf("kernel %s: %w", name, err)
	}
	event, err := s.queue.EnqueueNDRangeKernel(kernel, nil, []int{width, height}, nil, nil)
	if err != nil {
		return fmt.Errorf("kernel %s: %w", name, err)
	}
	event.Release()
	return nil
}

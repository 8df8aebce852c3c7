package main

import (
	"context"
	"fmt"
	"time"

	"tendril/client"
)

const (
	frameBytes   = 1 << 20
	streamSlices = 12  // of one round: they alternate with the reference's, so that both meet the same neighbours
	frames       = 256 // a slice, as membw's
	handOvers    = 4000
)

// streamBenchmarks measures streams: one writer and one reader, on a connection each.
func streamBenchmarks(r *rig) []benchmark {
	return []benchmark{
		{name: "store/stream/size=1MiB/client=go", unit: "B/s",
			against: "memcpy of 1 MiB into the slots of a touched ring", atLeast: 0.9, best: true,
			measure: func() (float64, float64, error) {
				return streamRate(r, "frames")
			}},
		{name: "store/stream/size=1MiB/client=go/floor", unit: "B/s", against: "a ring between two processes in C",
			atLeast: 0.9, best: true, measure: func() (float64, float64, error) {
				return streamRate(r, "ring")
			}},
		{name: "store/stream/hand-over/client=go", unit: "ns", against: "64-byte socket round trip in C", atMost: 2,
			best: true, measure: func() (float64, float64, error) {
				reference, err := r.rtt.reference("rtt")
				if err != nil {
					return 0, 0, err
				}
				v, err := handOver(r)
				return v, reference, err
			}},
		{name: "store/stream/hand-over/client=go/floor", unit: "ns", against: "64 bytes through a third process in C",
			atMost: 2, best: true, measure: func() (float64, float64, error) {
				reference, err := r.rtt.reference("chain")
				if err != nil {
					return 0, 0, err
				}
				v, err := handOver(r)
				return v, reference, err
			}},
	}
}

// streamRate gives the best slice of frames through a stream and of the reference, a test of membw's.
func streamRate(r *rig, against string) (rate, reference float64, err error) {
	a, b, err := r.connections()
	if err != nil {
		return 0, 0, err
	}
	defer a.Close()
	defer b.Close()
	s, err := openStream(a, b, "bench", 8)
	if err != nil {
		return 0, 0, err
	}
	defer s.close()
	content := make([]byte, frameBytes)
	for i := range content {
		content[i] = 1
	}
	for i := range streamSlices + 1 {
		ref, err := r.memory.reference(against)
		if err != nil {
			return 0, 0, err
		}
		took, err := s.pass(content, frames)
		if err != nil {
			return 0, 0, err
		}
		if i > 0 { // the first one makes the memory
			rate, reference = max(rate, frames*frameBytes/took.Seconds()), max(reference, ref)
		}
	}
	return rate, reference, nil
}

// stream is one stream's two ends.
type stream struct {
	w *client.Writer
	r *client.Reader
}

func openStream(from, to *client.Conn, name string, ahead int) (stream, error) {
	w, err := from.OpenWriter(context.Background(), name, client.StreamOptions{Ahead: ahead})
	if err != nil {
		return stream{}, err
	}
	r, err := to.OpenReader(context.Background(), name, client.StreamOptions{Ahead: ahead})
	if err != nil {
		w.Close(context.Background())
		return stream{}, err
	}
	return stream{w, r}, nil
}

func (s stream) close() {
	s.w.Close(context.Background())
	s.r.Close(context.Background())
}

// pass pushes n frames of content and gives the time until the last one is popped.
func (s stream) pass(content []byte, n int) (time.Duration, error) {
	popped := make(chan error, 1)
	start := time.Now()
	go func() { popped <- s.popAll(n, len(content)) }()
	for range n {
		if err := s.w.Write(context.Background(), content, nil, time.Minute); err != nil {
			return 0, err
		}
	}
	if err := s.w.Flush(context.Background()); err != nil {
		return 0, err
	}
	err := <-popped
	return time.Since(start), err
}

func (s stream) popAll(n, size int) error {
	for range n {
		f, err := s.r.Pop(context.Background(), time.Minute)
		if err != nil {
			return err
		}
		if len(f.Bytes()) != size {
			return fmt.Errorf("a frame of %d bytes", len(f.Bytes()))
		}
		f.Release()
	}
	return nil
}

// handOver gives the median time from a push of 64 bytes to the frame in the reader's hands: half of what a frame takes
// through one stream, and back through another.
func handOver(r *rig) (float64, error) {
	a, b, err := r.connections()
	if err != nil {
		return 0, err
	}
	defer a.Close()
	defer b.Close()
	there, err := openStream(a, b, "bench-there", 1)
	if err != nil {
		return 0, err
	}
	defer there.close()
	back, err := openStream(b, a, "bench-back", 1)
	if err != nil {
		return 0, err
	}
	defer back.close()
	const n = handOvers + handOvers/10
	echoed := make(chan error, 1)
	go func() {
		for range n {
			if err := step(there.r, back.w); err != nil {
				echoed <- err
				return
			}
		}
		echoed <- nil
	}()
	content := make([]byte, 64)
	trip, err := perCall(handOvers, func() error {
		if err := there.w.Write(context.Background(), content, nil, time.Minute); err != nil {
			return err
		}
		return pop(back.r, len(content))
	})
	if err != nil {
		return 0, err
	}
	return trip / 2, <-echoed
}

func step(from *client.Reader, to *client.Writer) error {
	if err := pop(from, 64); err != nil {
		return err
	}
	return to.Write(context.Background(), make([]byte, 64), nil, time.Minute)
}

func pop(r *client.Reader, size int) error { return stream{r: r}.popAll(1, size) }

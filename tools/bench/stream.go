package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tendril/client"
	"tendril/store/segment"
)

const (
	frameBytes = 1 << 20
	frames     = 2000
	handOvers  = 2000
)

// streamBenchmarks measures streams: one writer and one reader, on a connection each.
func streamBenchmarks(r *rig) []benchmark {
	return []benchmark{
		{name: "store/stream/size=1MiB/client=go", unit: "B/s", against: "memcpy of frames of 1 MiB", atLeast: 0.9, best: true, measure: func() (float64, float64, error) {
			content := make([]byte, frameBytes)
			copied := make([]byte, 16*frameBytes)
			for i := range copied {
				copied[i] = 1
			}
			start := time.Now()
			for i := range frames {
				at := i % 16 * frameBytes
				segment.Copy(copied[at:at+frameBytes], content)
			}
			reference := frames * frameBytes / time.Since(start).Seconds()
			took, err := r.stream(frames, content, 8)
			return frames * frameBytes / took.Seconds(), reference, err
		}},
		{name: "store/stream/hand-over/client=go", unit: "ns", against: "64-byte socket round trip in C", atMost: 2, best: true, measure: func() (float64, float64, error) {
			reference, err := r.rtt.ask("rtt")
			if err != nil {
				return 0, 0, err
			}
			took, err := r.stream(handOvers, make([]byte, 64), 0)
			return float64(took.Nanoseconds()) / handOvers, reference, err
		}},
	}
}

// stream pushes n frames of content through a stream of its own and gives the time until the last one is popped.
func (r *rig) stream(n int, content []byte, ahead int) (time.Duration, error) {
	a, b, err := r.connections()
	if err != nil {
		return 0, err
	}
	defer a.Close()
	defer b.Close()
	name := fmt.Sprintf("bench-%d", time.Now().UnixNano())
	w, err := a.OpenWriter(name, client.StreamOptions{Ahead: ahead})
	if err != nil {
		return 0, err
	}
	defer w.Close()
	reader, err := b.OpenReader(name, client.StreamOptions{Ahead: ahead})
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	var popErr error
	var wait sync.WaitGroup
	start := time.Now()
	wait.Go(func() { popErr = popAll(reader, n, len(content)) })
	for range n {
		if err := w.Write(context.Background(), content, nil, time.Minute); err != nil {
			return 0, err
		}
	}
	if err := w.Flush(context.Background()); err != nil {
		return 0, err
	}
	wait.Wait()
	return time.Since(start), popErr
}

func popAll(reader *client.Reader, n, size int) error {
	for range n {
		f, err := reader.Pop(context.Background(), time.Minute)
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

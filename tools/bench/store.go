package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"tendril/client"
)

const (
	calls   = 3000
	small   = 4 << 10
	shared  = 1 << 20
	largest = 1 << 30
)

// storeBenchmarks measures the store through the Go client over the socket.
func storeBenchmarks(r *rig) []benchmark {
	trip := func(measure func(*rig) (float64, error)) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			ref, err := r.rtt.reference("rtt")
			if err != nil {
				return 0, 0, err
			}
			v, err := measure(r)
			return v, ref, err
		}
	}
	inC := func(test string) func(*rig) (float64, error) {
		return func(r *rig) (float64, error) { return r.c.ask(test) }
	}
	fill := func(measure func(*rig) (float64, error)) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			ref, err := r.memory.reference("memcpy")
			if err != nil {
				return 0, 0, err
			}
			v, err := measure(r)
			return v, ref, err
		}
	}
	const socket = "64-byte socket round trip in C"
	all := []benchmark{
		{name: "store/get+release/size=1MiB/client=go", unit: "ns", against: socket, atMost: 1.7, best: true,
			measure: trip(getRelease)},
		{name: "store/get+release/size=64B/client=c", unit: "ns", against: socket, atMost: 1.7, best: true,
			measure: trip(inC("get_release_64B"))},
		{name: "store/get+release/size=1MiB/client=c", unit: "ns", against: socket, atMost: 1.7, best: true,
			measure: trip(inC("get_release_1MiB"))},
		{name: "store/create+seal/size=4KiB/client=go", unit: "ns", against: socket, atMost: 2.5, best: true,
			measure: trip(createSeal(small))},
		{name: "store/create+seal/size=4KiB/client=c", unit: "ns", against: socket, atMost: 2.5, best: true,
			measure: trip(inC("create_seal_4KiB"))},
		{name: "store/create+seal+delete/size=64B/clients=4", unit: "1/s", against: "60,000 a second", atLeast: 1,
			best: true, measure: func() (float64, float64, error) {
				v, err := r.c.ask("churn_64B")
				return v, 60000, err
			}},
		{name: "store/create+seal+delete/size=64B/clients=4/floor", unit: "1/s",
			against: "two round trips, of 4 clients in C to one server", atLeast: 0.8, best: true,
			measure: func() (float64, float64, error) {
				ref, err := r.rtt.reference("crowd")
				if err != nil {
					return 0, 0, err
				}
				v, err := r.c.ask("churn_64B")
				return v, ref, err
			}},
		{name: "store/create+fill+seal/size=1GiB/client=go", unit: "B/s", against: "memcpy into a touched mapping",
			atLeast: 0.95, measure: fill(fillLargest)},
		{name: "store/create+fill+seal/size=1GiB/client=c", unit: "B/s", against: "memcpy into a touched mapping",
			atLeast: 0.95, measure: fill(inC("fill_1GiB"))},
		{name: "store/first-read/size=1GiB/client=c", unit: "B/s",
			against: "MADV_POPULATE_READ of a plain memfd, by a new process", atLeast: 0.9,
			measure: func() (float64, float64, error) {
				ref, err := r.memory.reference("populate")
				if err != nil {
					return 0, 0, err
				}
				v, err := r.c.ask("first_read_1GiB")
				return v, ref, err
			}},
	}
	inPlace := func(of string, atMost float64, measure func(*rig) (float64, error)) benchmark {
		return benchmark{name: "store/create+fill in place+seal/size=1MiB/client=" + of, unit: "ns",
			against: "memcpy of 1 MiB + 2 socket round trips",
			atMost:  atMost, best: true, measure: func() (float64, float64, error) {
				rate, err := r.memory.reference("again")
				if err != nil {
					return 0, 0, err
				}
				v, ref, err := trip(measure)()
				return v, 2*ref + shared/rate*1e9, err
			}}
	}
	all = append(all, inPlace("go", 1.5, createSeal(shared)), inPlace("c", 1.5, inC("fill_1MiB")),
		inPlace("python", 4, func(r *rig) (float64, error) { return r.python.ask("fill") }))
	all = append(all, benchmark{name: "store/get/size=1GiB/client=python", unit: "ns", against: "60 µs", atMost: 1,
		best: true, measure: func() (float64, float64, error) {
			v, err := r.python.ask("get")
			return v, 60000, err
		}})
	all = append(append(append(all, gpuBenchmarks(r)...), smallBenchmarks(r)...), redisBenchmarks(r)...)
	return append(append(all, streamBenchmarks(r)...), scaleBenchmarks(r)...)
}

// smallBenchmarks compares Python's small objects with Redis, and a large one with multiprocessing's shared memory.
func smallBenchmarks(r *rig) (all []benchmark) {
	row := func(name, asked, against, rival string, atMost float64) {
		all = append(all, benchmark{name: "store/" + name + "/client=python", unit: "ns", against: against,
			atMost: atMost, best: true, measure: func() (float64, float64, error) {
				ref, err := r.small.reference(rival)
				if err != nil {
					return 0, 0, err
				}
				v, err := r.small.ask(asked)
				return v, ref, err
			}})
	}
	for _, size := range []string{"100", "4096"} {
		row("put/size="+size, "put "+size, "SET of Redis, redis-py", "redis-put "+size, 1.5)
		row("get/size="+size, "get "+size, "GET of Redis, redis-py", "redis-get "+size, 1)
	}
	row("get/size=64MiB", "map", "attach of multiprocessing.shared_memory", "shm", 2)
	return all
}

// perCall returns the median time of n calls of f, as the C reference does,
// after as many warm ones as a tenth of n.
func perCall(n int, f func() error) (float64, error) {
	took := make([]float64, 0, n)
	for i := range n + n/10 {
		start := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		if i >= n/10 {
			took = append(took, float64(time.Since(start).Nanoseconds()))
		}
	}
	return median(took), nil
}

// getRelease gets another connection's object, looks at its bytes and lets it go.
func getRelease(r *rig) (_ float64, err error) {
	writer, reader, err := r.connections()
	if err != nil {
		return 0, err
	}
	defer writer.Close()
	defer reader.Close()
	o, err := writer.Put(context.Background(), make([]byte, shared), client.CreateOptions{})
	if err != nil {
		return 0, err
	}
	defer o.Release()
	id := o.ID()
	return perCall(calls, func() error {
		got, err := reader.Get(context.Background(), id, 0)
		if err != nil {
			return err
		}
		defer got.Release()
		if len(got.Bytes()) != shared {
			return fmt.Errorf("object of %d bytes", len(got.Bytes()))
		}
		return nil
	})
}

// createSeal makes objects of a size, fills each in its memory, seals it and lets it go.
func createSeal(size int) func(*rig) (float64, error) {
	return func(r *rig) (float64, error) {
		c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
		if err != nil {
			return 0, err
		}
		defer c.Close()
		content := bytes.Repeat([]byte{1}, size)
		return perCall(calls, func() error {
			b, err := c.Create(context.Background(), uint64(size), client.CreateOptions{})
			if err != nil {
				return err
			}
			copy(b.Bytes(), content)
			o, err := b.Seal(context.Background())
			if err != nil {
				return err
			}
			o.Release()
			return nil
		})
	}
}

// fillLargest makes one object of 1 GiB in memory that an earlier one left warm.
func fillLargest(r *rig) (float64, error) {
	if err := r.fillConn(); err != nil {
		return 0, err
	}
	start := time.Now()
	o, err := r.filler.Put(context.Background(), r.content, client.CreateOptions{}) // creates, fills, seals
	if err != nil {
		return 0, err
	}
	rate := largest / time.Since(start).Seconds()
	o.Release()
	return rate, nil
}

// fillConn opens the connection that keeps the large segment warm between
// rounds, and touches what is copied from.
func (r *rig) fillConn() (err error) {
	if r.filler != nil {
		return nil
	}
	if r.filler, err = client.Dial(context.Background(), client.Options{Socket: r.socket}); err != nil {
		return err
	}
	r.atEnd(func() { r.filler.Close() })
	r.content = make([]byte, largest)
	for i := 0; i < largest; i += 4096 {
		r.content[i] = 1
	}
	return nil
}

func (r *rig) connections() (a, b *client.Conn, err error) {
	if a, err = client.Dial(context.Background(), client.Options{Socket: r.socket}); err != nil {
		return nil, nil, err
	}
	if b, err = client.Dial(context.Background(), client.Options{Socket: r.socket}); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// gpuBenchmarks measures what an object in the memory of a GPU costs beside its driver: the daemon's keeper has the
// tests' driver, which costs next to nothing. tools/gpucheck measures the same with NVIDIA's.
func gpuBenchmarks(r *rig) []benchmark {
	const name = "store/device/create+abort/size=1MiB/client=go"
	return []benchmark{
		{name: name, unit: "ns", against: "20 µs", atMost: 1, best: true, measure: func() (float64, float64, error) {
			v, err := createAbort(r)
			return v, 20000, err
		}},
		{name: name + "/floor", unit: "ns", against: "64-byte socket round trip in C", atMost: 3, best: true,
			measure: func() (float64, float64, error) {
				ref, err := r.rtt.reference("rtt")
				if err != nil {
					return 0, 0, err
				}
				v, err := createAbort(r)
				return v, ref, err
			}},
	}
}

// fakeCUDA is where the daemon's keeper finds its driver; makeFakeCUDA compiles it.
func (r *rig) fakeCUDA() string { return filepath.Join(r.dir, "libfakecuda.so") }

func (r *rig) makeFakeCUDA() error {
	if isFile(r.fakeCUDA()) {
		return nil
	}
	source := filepath.Join("forwarding", "cuda", "fakecuda", "testdata", "fakecuda.c")
	out, err := exec.Command("cc", "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", r.fakeCUDA(), source,
		"-lpthread").CombinedOutput()
	if err != nil {
		return fmt.Errorf("compile the tests' CUDA driver (run from the repository's root): %w\n%s", err, out)
	}
	return nil
}

// createAbort makes objects in the memory of a GPU and drops each before it is sealed, in the steady state: from the
// second on the memory is the one before's.
func createAbort(r *rig) (float64, error) {
	if err := r.makeFakeCUDA(); err != nil {
		return 0, err
	}
	c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	list, err := c.GPUs(context.Background())
	if err != nil {
		return 0, err
	}
	if len(list) == 0 {
		return 0, errors.New("the tests' CUDA driver shows no GPU")
	}
	return perCall(calls, func() error {
		b, err := c.CreateDevice(context.Background(), list[0].UUID, shared, client.CreateOptions{})
		if err != nil {
			return err
		}
		return b.Abort(context.Background())
	})
}

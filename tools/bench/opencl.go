package main

import (
	"errors"
	"fmt"
)

// openclBenchmarks measures a C program natively and forwarded, in turn.
func openclBenchmarks(r *rig) []benchmark {
	both := func(test string) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			ref, err := r.native.reference(test)
			if err != nil {
				return 0, 0, fmt.Errorf("native: %w", err)
			}
			v, err := r.forwarded.ask(test)
			if err != nil {
				return 0, 0, fmt.Errorf("forwarded: %w", err)
			}
			return v, ref, nil
		}
	}
	// plus adds to the native side what one socket round trip, or an allowance in ns, costs.
	plus := func(test string, trips, allowance float64) func() (float64, float64, error) {
		measure := both(test)
		return func() (float64, float64, error) {
			trip, err := r.rtt.reference("rtt")
			if err != nil {
				return 0, 0, err
			}
			v, ref, err := measure()
			return v, ref + trips*trip + allowance, err
		}
	}
	const trip1 = "native + 1 socket round trip"
	return []benchmark{
		{name: "opencl/kernel+finish/path=unix", unit: "ns", against: trip1, atMost: 1.5,
			measure: plus("kernel_finish", 1, 0)},
		{name: "opencl/kernel/batch=1000/path=unix", unit: "ns", against: "native", atMost: 1.5,
			measure: both("kernels_1000")},
		{name: "opencl/kernel/chain=100/queues=2/path=unix", unit: "ns", against: "native", atMost: 1.5,
			measure: both("chain_100")},
		{name: "opencl/kernel/chain=100/queues=1/path=unix", unit: "ns", against: "native", atMost: 1.5,
			measure: both("chain_100_one_queue")},
		{name: "opencl/write/size=128MiB/path=unix", unit: "B/s", against: "native", atLeast: 0.9,
			measure: both("write_128MiB")},
		{name: "opencl/read/size=128MiB/path=unix", unit: "B/s", against: "native", atLeast: 0.9,
			measure: both("read_128MiB")},
		{name: "opencl/map+touch+unmap/size=1MiB/path=unix", unit: "ns", against: "native + 30 µs", atMost: 1,
			measure: plus("map_1MiB", 0, 30e3)},
		{name: "opencl/map+touch+unmap/size=16MiB/path=unix", unit: "ns", against: "native + 30 µs", atMost: 1,
			measure: plus("map_16MiB", 0, 30e3)},
		{name: "opencl/write/size=4B/path=unix", unit: "ns", against: trip1, atMost: 1.3,
			measure: plus("write_4B", 1, 0)},
		{name: "opencl/write+kernel+read/size=4KiB/path=unix", unit: "ns", against: trip1, atMost: 1.3,
			measure: plus("write_kernel_read_4KiB", 1, 0)},
		{name: "opencl/write+kernel+read/size=16KiB/batch=256/path=unix", unit: "ns", against: "native", atMost: 1.5,
			measure: both("tiles")},
		{name: "opencl/create+release/size=4KiB/path=unix", unit: "ns", against: trip1, atMost: 1.3,
			measure: plus("create_release_4KiB", 1, 0)},
		{name: "opencl/call/traced/path=unix", unit: "ns", against: "untraced + 100 ns", atMost: 1,
			measure: r.tracedCall},
		{name: "opencl/create+release/buffers=100000/path=unix", unit: "ns", against: "1 µs", atMost: 1,
			measure: func() (float64, float64, error) {
				v, err := r.forwarded.ask("buffers_100000")
				return v, 1e3, err
			}},
		{name: "opencl/descriptors/buffers=100000/path=unix", against: "those without them + 16", atMost: 1,
			measure: func() (float64, float64, error) {
				idle, err := r.forwarded.reference("descriptors")
				if err != nil {
					return 0, 0, err
				}
				v, err := r.forwarded.ask("descriptors_100000")
				return v, idle + 16, err
			}},
	}
}

// rowBenchmarks measures what programs do besides the shortest calls, natively and forwarded in turn.
func rowBenchmarks(r *rig) []benchmark {
	both := func(test string, allowance float64) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			ref, err := r.rows[0].reference(test)
			v, errForwarded := r.rows[1].ask(test)
			return v, ref + allowance, errors.Join(err, errForwarded)
		}
	}
	// length is a kernel of so many µs: both processes turn its loop as often.
	length := func(us int) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			loops, err := r.rows[0].reference("loops")
			if err == nil {
				_, err = r.rows[1].reference(fmt.Sprintf("use %.0f", loops))
			}
			if err != nil {
				return 0, 0, err
			}
			return both(fmt.Sprintf("length %d", us), 15e3)()
		}
	}
	row := func(name, test string, atMost float64) benchmark {
		return benchmark{name: "opencl/" + name + "/path=unix", unit: "ns", against: "native", atMost: atMost,
			measure: both(test, 0)}
	}
	rate := func(name, unit, test string, atLeast float64) benchmark {
		return benchmark{name: "opencl/" + name + "/path=unix", unit: unit, against: "native", atLeast: atLeast,
			measure: both(test, 0)}
	}
	var rows []benchmark
	for _, us := range []int{100, 1000, 3000} {
		rows = append(rows, benchmark{name: fmt.Sprintf("opencl/kernel+finish/kernel=%dµs/path=unix", us), unit: "ns",
			against: "native + 15 µs", atMost: 1, measure: length(us)})
	}
	return append(rows,
		benchmark{name: "opencl/kernel+status queries/path=unix", unit: "ns", against: "native + 10 µs", atMost: 1,
			measure: both("polled", 10e3)},
		row("write, not waited for/count=16/size=1MiB", "writes_16x1MiB", 1.1),
		row("read, not waited for/count=16/size=1MiB", "reads_16x1MiB", 1.1),
		row("write, not waited for/count=1000/size=64B", "writes_1000x64B", 1.3),
		row("kernel/chain=100/queue=out of order", "disorder_100", 1.2),
		row("write+kernel+read, blocking/size=1MiB", "there_and_back_1MiB", 1.1),
		row("image, map, unmap, release/size=64x64", "images", 1.5),
		rate("stream/size=1MiB", "B/s", "stream_1MiB", 0.85),
		rate("stencil/side=32", "1/s", "stencil 32", 0.8),
	)
}

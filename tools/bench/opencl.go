package main

import (
	"fmt"
	"os"
)

// openclBenchmarks measures a C program natively and forwarded, in turn.
func openclBenchmarks(r *rig) []benchmark {
	if r.noDevice != "" {
		fmt.Fprintln(os.Stderr, "bench: no OpenCL figures:", r.noDevice)
		return nil
	}
	both := func(test string) func() (float64, float64, error) {
		return func() (float64, float64, error) {
			ref, err := r.native.ask(test)
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
			trip, err := r.rtt.ask("rtt")
			if err != nil {
				return 0, 0, err
			}
			v, ref, err := measure()
			return v, ref + trips*trip + allowance, err
		}
	}
	return []benchmark{
		{"opencl/kernel+finish/path=unix", "ns", "native + 1 socket round trip", 2, 0, plus("kernel_finish", 1, 0)},
		{"opencl/kernel/batch=1000/path=unix", "ns", "native", 3, 0, both("kernels_1000")},
		{"opencl/kernel/chain=100/queues=2/path=unix", "ns", "native", 3, 0, both("chain_100")},
		{"opencl/kernel/chain=100/queues=1/path=unix", "ns", "native", 3, 0, both("chain_100_one_queue")},
		{"opencl/write/size=128MiB/path=unix", "B/s", "native", 0, 0.8, both("write_128MiB")},
		{"opencl/read/size=128MiB/path=unix", "B/s", "native", 0, 0.8, both("read_128MiB")},
		{"opencl/map+touch+unmap/size=16MiB/path=unix", "ns", "native + 100 µs", 1, 0, plus("map_16MiB", 0, 100e3)},
		{"opencl/write/size=4B/path=unix", "ns", "native + 1 socket round trip", 2, 0, plus("write_4B", 1, 0)},
		{"opencl/write+kernel+read/size=4KiB/path=unix", "ns", "native + 1 socket round trip", 2, 0, plus("write_kernel_read_4KiB", 1, 0)},
		{"opencl/create+release/size=4KiB/path=unix", "ns", "native + 1 socket round trip", 2, 0, plus("create_release_4KiB", 1, 0)},
	}
}

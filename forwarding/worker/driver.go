//go:build cgo

package worker

import (
	"tendril/forwarding/cl"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
)

// nativeDriver is the engine's view of OpenCL.
type nativeDriver struct{}

func (nativeDriver) Marker(q engine.Native, barrier bool, waits []engine.Native, want bool) (engine.Native, int32) {
	e, s := opencl.Queue(q).Marker(barrier, after(waits, want))
	return engine.Native(e), int32(s)
}

func (nativeDriver) Flush(q engine.Native) { opencl.Queue(q).Flush() }

func (nativeDriver) Finish(q engine.Native) int32 { return int32(opencl.Queue(q).Finish()) }

func (nativeDriver) Statuses(events []engine.Native, status []int32) {
	opencl.Statuses(asEvents(events), status)
}

func (nativeDriver) Wait(e engine.Native) { opencl.Event(e).Wait() }

func (nativeDriver) Profile(e engine.Native) ([5]uint64, bool) {
	t, s := opencl.Event(e).Profile()
	return t, s == cl.SUCCESS
}

func (nativeDriver) Release(events []engine.Native) { opencl.ReleaseEvents(asEvents(events)) }

func after(waits []engine.Native, want bool) opencl.After {
	return opencl.After{Wait: asEvents(waits), Want: want}
}

package api

import "tendril/forwarding/cl"

// CreateKernels is clCreateKernelsInProgram (§5.9.1) for a program whose kernels have these names: Driver.CreateKernels
// of whoever knows them. count is how many handles the caller takes; 0 only asks how many there are. If a kernel cannot
// be made, those before it are released.
func CreateKernels(names []string, count int, create func(name string) (uintptr, Status),
	release func(uintptr) Status) (handles []uintptr, total int, status Status) {
	switch {
	case count == 0:
		return nil, len(names), cl.SUCCESS
	case count < len(names):
		return nil, 0, cl.INVALID_VALUE
	}
	for _, name := range names {
		h, status := create(name)
		if status != cl.SUCCESS {
			for _, made := range handles {
				release(made)
			}
			return nil, 0, status
		}
		handles = append(handles, h)
	}
	return handles, len(names), cl.SUCCESS
}

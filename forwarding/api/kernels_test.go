package api

import (
	"slices"
	"testing"

	"tendril/forwarding/cl"
)

// TestCreateKernels: too little room makes none, and a kernel that cannot be made takes those before it along.
func TestCreateKernels(t *testing.T) {
	for _, c := range []struct {
		name    string
		count   int
		fails   string
		handles []uintptr
		total   int
		status  Status
	}{
		{"asks for the number", 0, "", nil, 3, cl.SUCCESS},
		{"too little room", 2, "", nil, 0, cl.INVALID_VALUE},
		{"all", 3, "", []uintptr{1, 2, 3}, 3, cl.SUCCESS},
		{"more room than kernels", 9, "", []uintptr{1, 2, 3}, 3, cl.SUCCESS},
		{"the last one fails", 3, "c", nil, 0, cl.OUT_OF_RESOURCES},
	} {
		t.Run(c.name, func(t *testing.T) {
			var made, released []uintptr
			create := func(name string) (uintptr, Status) {
				if name == c.fails {
					return 0, cl.OUT_OF_RESOURCES
				}
				made = append(made, uintptr(len(made)+1))
				return made[len(made)-1], cl.SUCCESS
			}
			release := func(h uintptr) Status {
				released = append(released, h)
				return cl.SUCCESS
			}
			handles, total, status := CreateKernels([]string{"a", "b", "c"}, c.count, create, release)
			if !slices.Equal(handles, c.handles) || total != c.total || status != c.status {
				t.Errorf("%v, %d, %v; want %v, %d, %v", handles, total, status, c.handles, c.total, c.status)
			}
			if left := len(made) - len(released); left != len(c.handles) {
				t.Errorf("%d kernels are left, %d were given", left, len(c.handles))
			}
		})
	}
}

package span

import (
	"strings"
	"sync"

	"tendril/forwarding/api"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/svm"
)

// Mode says which devices share a platform (TENDRIL_PLATFORMS).
type Mode int

const (
	Native Mode = iota // each native platform is a platform
	Node               // each node's devices are one platform
	One                // all devices are one platform
)

// ParseMode reads native, node or one. "" is Native for one node and One for several: whoever names several servers
// wants their devices together.
func ParseMode(text string, servers int) (Mode, bool) {
	switch strings.ToLower(text) {
	case "":
		if servers > 1 {
			return One, true
		}
		return Native, true
	case "native":
		return Native, true
	case "node":
		return Node, true
	case "one":
		return One, true
	}
	return Native, false
}

// Slots of address space for each kind of object.
const (
	fewSlots  = 4 << 10
	someSlots = 1 << 20
	manySlots = 4 << 20
)

// Driver is a Base with platforms and contexts that span. All methods may be called concurrently, also from callbacks.
// What is not of this package's objects goes to the Base, which answers for its own and refuses what is nobody's.
type Driver struct {
	base     api.Base
	mode     Mode
	dispatch uintptr

	once   sync.Once
	merged []*platform // immutable once made; nil in mode Native

	platforms *handle.Table[platform]
	contexts  *handle.Table[Context]
	queues    *handle.Table[Queue]
	buffers   *handle.Table[Buffer]
	programs  *handle.Table[Program]
	kernels   *handle.Table[Kernel]
	events    *handle.Table[Event]
	samplers  *handle.Table[Sampler]
	graphs    *handle.Table[CommandBuffer]
	shared    svm.Table[svmPart] // shared virtual memory of contexts that span
}

// New makes a Driver over base. dispatch is the address of the ICD dispatch table. Tables are made only where platforms
// may span.
func New(base api.Base, mode Mode, dispatch uintptr) (*Driver, error) {
	d := &Driver{base: base, mode: mode, dispatch: dispatch}
	slots := uint32(1)
	if mode != Native {
		slots = someSlots
	}
	var errs [9]error
	d.platforms, errs[0] = handle.New[platform](dispatch, min(slots, fewSlots))
	d.contexts, errs[1] = handle.New[Context](dispatch, slots)
	d.queues, errs[2] = handle.New[Queue](dispatch, slots)
	d.buffers, errs[3] = handle.New[Buffer](dispatch, slots*manySlots/someSlots)
	d.programs, errs[4] = handle.New[Program](dispatch, slots)
	d.kernels, errs[5] = handle.New[Kernel](dispatch, slots)
	d.events, errs[6] = handle.New[Event](dispatch, slots*manySlots/someSlots)
	d.samplers, errs[7] = handle.New[Sampler](dispatch, slots)
	d.graphs, errs[8] = handle.New[CommandBuffer](dispatch, slots)
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return d, nil
}

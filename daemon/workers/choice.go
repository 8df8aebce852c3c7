package workers

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// Choice is which devices the administrator has this node offer; the zero value is all of them. It is immutable.
type Choice struct {
	text    string // as it was written
	types   []uint64
	indices []int
	uuids   []string
}

// deviceTypes are the words for cl_device_type (OpenCL 3.0 §4.2).
var deviceTypes = map[string]uint64{
	"cpu": cl.DEVICE_TYPE_CPU, "gpu": cl.DEVICE_TYPE_GPU, "accelerator": cl.DEVICE_TYPE_ACCELERATOR,
}

// maxChoices bounds how many terms a choice has.
const maxChoices = 256

// ParseChoice reads terms: a type, an index among all devices of the node, or a UUID. None are all devices, and so is
// "all". The error names every term that is none of these.
func ParseChoice(terms []string) (Choice, error) {
	c := Choice{text: strings.Join(terms, ",")}
	if len(terms) > maxChoices {
		return Choice{}, fmt.Errorf("devices: %d terms, more than %d", len(terms), maxChoices)
	}
	var faults []error
	for _, term := range terms {
		word := strings.ToLower(strings.TrimPrefix(strings.TrimSpace(term), "type="))
		kind, isType := deviceTypes[word]
		index, err := strconv.Atoi(word)
		switch {
		case word == "all":
			if len(terms) > 1 {
				faults = append(faults, errors.New(`devices: "all" stands alone`))
			}
			return Choice{}, errors.Join(faults...)
		case isType:
			c.types = append(c.types, kind)
		case isUUID(word): // before indices: one may have digits alone
			c.uuids = append(c.uuids, plainUUID(word))
		case err == nil && index >= 0:
			c.indices = append(c.indices, index)
		default:
			faults = append(faults, fmt.Errorf("devices %q: want all, cpu, gpu, accelerator, an index such as 0, or a UUID of 32 hexadecimal digits, as tendril status and nvidia-smi -L show them", term))
		}
	}
	return c, errors.Join(faults...)
}

// plainUUID is a UUID without dashes, and without what nvidia-smi puts before it.
func plainUUID(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(text), "gpu-"), "-", "")
}

func isUUID(text string) bool {
	raw, err := hex.DecodeString(plainUUID(text))
	return err == nil && len(raw) == 16
}

// String gives the terms as they were written; "" means all.
func (c Choice) String() string { return c.text }

// all reports whether nothing is hidden.
func (c Choice) all() bool { return len(c.types)+len(c.indices)+len(c.uuids) == 0 }

// offers reports whether a device is among those chosen.
func (c Choice) offers(index int, kind uint64, uuid string) bool {
	return c.all() || slices.Contains(c.indices, index) || slices.Contains(c.uuids, plainUUID(uuid)) ||
		slices.ContainsFunc(c.types, func(t uint64) bool { return kind&t != 0 })
}

// why says why a device is hidden.
func (c Choice) why() string {
	return fmt.Sprintf("--devices %s includes neither its type, its index nor its UUID", c.text)
}

// Hidden is a device that the node has and does not offer.
type Hidden struct {
	Index    int    `json:"index"` // among all devices of the node
	Name     string `json:"name"`
	Platform string `json:"platform"`
	UUID     string `json:"uuid"`
	Why      string `json:"why"`
}

// prohibited says why a device is hidden that its compute mode allows to no process.
const prohibited = "its compute mode is prohibited (nvidia-smi --compute-mode 0 allows processes)"

func isProhibited(d clwire.DeviceSnapshot) bool { return d.Mode == clwire.ComputeProhibited }

// choose takes out of platforms what is not offered; those without a device left go. missing are the terms that no
// device is.
func (c Choice) choose(all []*Platform) (offered []*Platform, hidden []Hidden, missing []string) {
	if c.all() && !slices.ContainsFunc(all, func(p *Platform) bool {
		return slices.ContainsFunc(p.Snapshot.Devices, isProhibited)
	}) {
		return all, nil, nil
	}
	left := map[string]bool{}
	for _, i := range c.indices {
		left[strconv.Itoa(i)] = true
	}
	for _, u := range c.uuids {
		left[u] = true
	}
	index := 0
	for _, p := range all {
		own := *p
		own.Snapshot.Devices, own.Places = nil, []int{}
		for place, d := range p.Snapshot.Devices {
			kind := uint64(0)
			if b := d.Info[cl.DEVICE_TYPE]; len(b) == 8 {
				kind = binary.LittleEndian.Uint64(b)
			}
			why := c.why()
			if isProhibited(d) {
				why = prohibited
			}
			if c.offers(index, kind, d.UUID) && !isProhibited(d) {
				own.Snapshot.Devices, own.Places = append(own.Snapshot.Devices, d), append(own.Places, place)
			} else {
				name := d.Info[cl.DEVICE_NAME]
				hidden = append(hidden, Hidden{index, printable(name[:min(len(name), maxNameBytes)]), p.Name, d.UUID,
					why})
			}
			delete(left, strconv.Itoa(index))
			delete(left, d.UUID)
			index++
		}
		if len(own.Places) > 0 {
			offered = append(offered, &own)
		}
	}
	for term := range left {
		missing = append(missing, term)
	}
	slices.Sort(missing)
	return offered, hidden, missing
}

// Hidden gives the devices that the last probe found and that are not offered.
func (p *Pool) Hidden() []Hidden {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hidden
}

// OffersGPU reports whether a GPU is offered for objects, and if not why. An index is that of an OpenCL device: the
// probe knows which GPU it is.
func (p *Pool) OffersGPU(uuid string) (offers bool, why string) {
	c := p.opts.Devices
	if c.offers(-1, cl.DEVICE_TYPE_GPU, uuid) {
		return true, ""
	}
	if len(c.indices) > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, pl := range p.platforms {
			for _, d := range pl.Snapshot.Devices {
				if plainUUID(d.UUID) == plainUUID(uuid) {
					return true, ""
				}
			}
		}
	}
	return false, c.why()
}

// hidingVariables are what drivers read to find out which devices they may show, and shapingVariables what changes how
// these are shown: their order, and how much memory PoCL says it has. The daemon's own hold for its workers and probes,
// too: who started it with one GPU offers one.
var (
	hidingVariables  = []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}
	shapingVariables = []string{"CUDA_DEVICE_ORDER", "POCL_MEMORY_LIMIT"}
)

// Visible gives those that hide devices and are set in this process, as "NAME=value".
func Visible() []string { return ownEnv(hidingVariables) }

// visibleEnv gives those that hide or shape devices and are set, as "NAME=value".
func visibleEnv() []string { return ownEnv(slices.Concat(hidingVariables, shapingVariables)) }

func ownEnv(names []string) (list []string) {
	for _, name := range names {
		if value, set := os.LookupEnv(name); set && len(value) <= maxEnvBytes {
			list = append(list, name+"="+value)
		}
	}
	return list
}

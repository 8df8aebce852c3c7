package devices

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// ErrSelector is wrapped by every fault of a device selector.
var ErrSelector = errors.New("bad device selector")

// Selector chooses devices and their order. Its text is
//
//	alternative {";" alternative}      each adds its matches, in the node's order, without repeating one
//	alternative = term {"," term}      every term must hold
//	term = N                           position in `tendril devices`, from 0
//	     | UUID                        at least 8 hexadecimal digits, the whole or its start
//	     | type=cpu|gpu|accelerator
//	     | mem>=SIZE | mem<=SIZE       global memory: 8G, 512MiB
//	     | name=TEXT | platform=TEXT   part of the name, in any case
//
// The empty text chooses all.
type Selector struct{ alternatives [][]term }

// Choice is one chosen device by its positions in the snapshot.
type Choice struct{ Platform, Device int }

type candidate struct {
	ordinal  int
	platform *clwire.PlatformSnapshot
	device   *clwire.DeviceSnapshot
}

type term func(candidate) bool

// ParseSelector reads a selector's text. The error names the term at fault.
func ParseSelector(s string) (*Selector, error) {
	sel := &Selector{}
	if strings.TrimSpace(s) == "" {
		return sel, nil
	}
	for _, alternative := range strings.Split(s, ";") {
		var terms []term
		for _, word := range strings.Split(alternative, ",") {
			t, err := parseTerm(strings.TrimSpace(word))
			if err != nil {
				return nil, fmt.Errorf("%w %q: %w", ErrSelector, s, err)
			}
			terms = append(terms, t)
		}
		sel.alternatives = append(sel.alternatives, terms)
	}
	return sel, nil
}

var deviceTypes = map[string]uint64{"default": 1, "cpu": 2, "gpu": 4, "accelerator": 8, "custom": 16}

func parseTerm(word string) (term, error) {
	if n, err := strconv.ParseUint(word, 10, 16); err == nil && len(word) < 8 {
		return func(c candidate) bool { return c.ordinal == int(n) }, nil
	}
	for _, op := range []string{">=", "<=", "="} {
		if key, value, found := strings.Cut(word, op); found {
			return parseComparison(strings.ToLower(strings.TrimSpace(key)), op,
				strings.ToLower(strings.TrimSpace(value)))
		}
	}
	id := strings.ToLower(strings.ReplaceAll(word, "-", ""))
	if len(id) >= 8 && strings.Trim(id, "0123456789abcdef") == "" {
		return func(c candidate) bool {
			return strings.HasPrefix(strings.ToLower(strings.ReplaceAll(c.device.UUID, "-", "")), id)
		}, nil
	}
	return nil, fmt.Errorf("%q is not a position, UUID, type=…, mem>=…, name=… or platform=…", word)
}

func parseComparison(key, op, value string) (term, error) {
	switch {
	case key == "type" && op == "=":
		kind, ok := deviceTypes[value]
		if !ok {
			return nil, fmt.Errorf("type %q is not cpu, gpu or accelerator", value)
		}
		return func(c candidate) bool { return answers.Number(c.device.Info[cl.DEVICE_TYPE])&kind != 0 }, nil
	case key == "mem" && op != "=":
		return memoryTerm(op, value)
	case (key == "name" || key == "platform") && op == "=" && value != "":
		return func(c candidate) bool {
			name := answers.Text(c.device.Info[cl.DEVICE_NAME])
			if key == "platform" {
				name = answers.Text(c.platform.Info[cl.PLATFORM_NAME])
			}
			return strings.Contains(strings.ToLower(name), value)
		}, nil
	}
	return nil, fmt.Errorf("%q: want type=…, mem>=…, mem<=…, name=… or platform=…", key+op+value)
}

// memoryTerm takes 8G as 8 GiB, as people write it for memory.
func memoryTerm(op, value string) (term, error) {
	unit := strings.TrimLeft(value, "0123456789. ")
	if len(unit) == 1 {
		value += "ib"
	}
	size, err := humanize.ParseBytes(value)
	if err != nil {
		return nil, fmt.Errorf("memory size %q: %w", value, err)
	}
	return func(c candidate) bool {
		have := answers.Number(c.device.Info[cl.DEVICE_GLOBAL_MEM_SIZE])
		if op == ">=" {
			return have >= size
		}
		return have <= size
	}, nil
}

// Select returns the chosen devices of a snapshot, in order. None match: an empty slice.
func (s *Selector) Select(snapshot *clwire.Snapshot) []Choice {
	var all []candidate
	var where []Choice
	for p := range snapshot.Platforms {
		for d := range snapshot.Platforms[p].Devices {
			device := &snapshot.Platforms[p].Devices[d]
			ordinal := len(all)
			if device.Number > 0 { // others, which this session does not see, come before it
				ordinal = device.Number - 1
			}
			all = append(all, candidate{ordinal, &snapshot.Platforms[p], device})
			where = append(where, Choice{p, d})
		}
	}
	if len(s.alternatives) == 0 {
		return where
	}
	chosen, taken := []Choice{}, map[Choice]bool{}
	for _, terms := range s.alternatives {
		for i, c := range all {
			if matches(terms, c) && !taken[where[i]] {
				taken[where[i]] = true
				chosen = append(chosen, where[i])
			}
		}
	}
	return chosen
}

func matches(terms []term, c candidate) bool {
	for _, t := range terms {
		if !t(c) {
			return false
		}
	}
	return true
}

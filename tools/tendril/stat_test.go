package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"testing"

	"tendril/daemon"
	"tendril/store/object"
)

// Where an object's bytes are: in a segment, in a device's memory, or in none.
func TestStatSaysWhatMemoryAnObjectHas(t *testing.T) {
	device := object.Device{1, 2}
	for want, info := range map[string]object.Info{
		"segment 3, from byte 128": {Segment: 3, Offset: 128},
		"OpenCL device 01020000":   {Kind: object.OpenCL, Device: device},
		"GPU 01020000":             {Kind: object.CUDA, Device: device},
		"not of GPU 01020000":      {Kind: object.CUDA, Device: device, State: object.Spilled},
		"from disk":                {State: object.Spilled, OnDisk: true},
		"memory       none\n":      {}, // an empty object, or a composite
	} {
		var out bytes.Buffer
		c := &cli{term: terminal{out: &out}}
		if err := c.printObject(info, nil); err != nil || !strings.Contains(out.String(), want) ||
			strings.Contains(out.String(), "segment 0") {
			t.Errorf("%v, no %q in %s", err, want, out.String())
		}
	}
}

// An object that other nodes alone have says which they are, and a copy that it is one.
func TestStatSaysWhereAnObjectIs(t *testing.T) {
	for want, info := range map[string]object.Info{
		"a, b (a get brings it here)":                               {Nodes: []string{"a", "b"}},
		"a (a get brings it here, into ":                            {Nodes: []string{"a"}, Kind: object.OpenCL},
		"none on this node":                                         {Nodes: []string{"a"}, Kind: object.OpenCL},
		"yes: it goes when memory is short":                         {Cached: true},
		"copied from  a, b\n":                                       {CopiedFromNode: "a, b"},
		"copied from  a (made in memory of kind cuda, of a device)": {CopiedFromNode: "a", CopiedFrom: object.CUDA},
		"copied from  memory of kind cuda, of a device of another":  {CopiedFrom: object.CUDA},
	} {
		var out bytes.Buffer
		c := &cli{term: terminal{out: &out}}
		if err := c.printObject(info, nil); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v, no %q in %s", err, want, out.String())
		}
	}
}

// An object that no node has just now is not promised to a get, and one that is not here has no process that made it.
func TestStatOfWhatNoNodeHasNow(t *testing.T) {
	for have, want := range map[int]string{0: "b (none of them has it just now)\n", 1: "b (a get brings it here)\n"} {
		var out bytes.Buffer
		c := &cli{term: terminal{out: &out}}
		at := &publication{Name: "x", Nodes: []string{"b"}, Have: have, Wanted: 1}
		if err := c.printStat(object.Info{Name: "x", Nodes: at.Nodes}, at); err != nil ||
			!strings.Contains(out.String(), want) || strings.Contains(out.String(), "made by") {
			t.Errorf("%v, no %q, or a maker, in %s", err, want, out.String())
		}
	}
}

// What is published says so. Where the cluster is silent, text and JSON are whole, and that is said behind them.
func TestStatSaysHowAnObjectIsPublished(t *testing.T) {
	at := &publication{Name: "shown\x1b", Nodes: []string{"a", "b"}, Have: 1, Wanted: 2,
		Unsure: "the cluster did not answer"}
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		c := &cli{term: terminal{out: &out}, json: asJSON}
		if err := c.printStat(object.Info{Name: "x"}, at); err != nil {
			t.Fatal(err)
		}
		if !asJSON {
			want := "published    as shown\\x1b, 1 of 2 replicas, listed at a, b: not all of them have it just now\n"
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in %s", want, out.String())
			}
			continue
		}
		var got struct {
			Name        string
			Publication daemon.PublishedStatus
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Name != "x" || got.Publication.Have != 1 ||
			got.Publication.Wanted != 2 || len(got.Publication.Nodes) != 2 {
			t.Errorf("%s: %v", out.String(), err)
		}
	}
	var errs bytes.Buffer
	if code := report(&errs, at.silence()); code != exitTimeout || !strings.Contains(errs.String(), "did not answer") {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	if err := (*publication)(nil).silence(); err != nil {
		t.Error(err)
	}
}

// An object that is renamed while it is looked for is published all the same, and those whose names only begin as its
// does are not all read.
func TestStatOfWhatIsRenamedMeanwhile(t *testing.T) {
	id, other := object.ID{1}, object.ID{2}
	for _, renames := range []int{0, 1, publicationTries - 1, publicationTries} {
		places, read := 0, 0
		at, err := publicationBy(id, func() (json.RawMessage, error) {
			places++
			return json.Marshal(map[string]string{"name": fmt.Sprint("name", places)})
		}, func(prefix string) iter.Seq2[daemon.PublishedStatus, error] {
			return func(yield func(daemon.PublishedStatus, error) bool) {
				if places > renames && !yield(daemon.PublishedStatus{ID: id, Name: prefix}, nil) {
					return
				}
				for range 1000 {
					read++
					if !yield(daemon.PublishedStatus{ID: other, Name: prefix + "x"}, nil) {
						return
					}
				}
			}
		})
		if found := renames < publicationTries; found != (at != nil) || found != (err == nil) || read > renames {
			t.Errorf("%d renames: %+v, %v, %d others read", renames, at, err, read)
		}
	}
	gone := func() (json.RawMessage, error) { return nil, object.ErrNotFound }
	if at, err := publicationBy(id, gone, nil); at != nil || err != nil {
		t.Errorf("unpublished: %+v, %v", at, err)
	}
}

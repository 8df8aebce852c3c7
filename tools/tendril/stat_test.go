package main

import (
	"bytes"
	"strings"
	"testing"

	"tendril/store/object"
)

// An object that other nodes alone have says which they are, and a copy that it is one.
func TestStatSaysWhereAnObjectIs(t *testing.T) {
	for want, info := range map[string]object.Info{
		"a, b (a get brings it here)":       {Nodes: []string{"a", "b"}},
		"yes: it goes when memory is short": {Cached: true},
	} {
		var out bytes.Buffer
		c := &cli{term: terminal{out: &out}}
		if err := c.printObject(info); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v, no %q in %s", err, want, out.String())
		}
	}
}

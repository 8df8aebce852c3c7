package main

import (
	"fmt"
	"strings"
	"testing"

	"tendril/store/object"
)

// TestStepsOfShortages: who may have no more of something is told which setting it is, and that is another one for
// memory and for numbers.
func TestStepsOfShortages(t *testing.T) {
	for _, test := range []struct {
		why        error
		text, want string
	}{
		{object.ErrFull, "no", "--capacity"},
		{object.ErrFull, "the GPU has no memory left: no", "sessions take a device's memory, too."},
		{object.ErrFull, "the device has no memory left: no", "sessions take a device's memory, too."},
		{object.ErrQuota, "no", "daemon --quota"},
		{object.ErrQuota, "delete objects, or raise --quota-device", "daemon --quota-device"},
		{object.ErrLimit, "no", "--quota-objects, --quota-segments"},
	} {
		sent := object.FromCode(object.CodeOf(test.why), test.text)
		code, step := classify(fmt.Errorf("put: %w", sent))
		if code != exitFull || !strings.HasSuffix(step, test.want) {
			t.Errorf("%v: exit code %d: %s", test.why, code, step)
		}
	}
}

// Where the error says itself what to do, or is about a node, no step about an object's name follows.
func TestStepsOfNodes(t *testing.T) {
	for _, test := range []struct {
		why        error
		text, want string
		code       int
	}{
		{object.ErrNotFound, `the cluster has no node "x"`, "See the cluster's nodes with: tendril cluster status", exitNotFound},
		{object.ErrExists, `node 1 is called "x" already: start this one with another --name`, "", exitExists},
		{object.ErrExists, "this node is in a cluster already, with b: first: tendril cluster leave", "", exitExists},
		{object.ErrExists, `an object is named "x"`, "Choose another name.", exitExists},
		{object.ErrNotFound, `no published object has the name "x"`,
			"See what is published with: tendril ls --published    To publish an object: tendril publish",
			exitNotFound},
		{object.ErrNotFound, `tenant "a" has published no object "x"`,
			"See what is published with: tendril ls --published    To publish an object: tendril publish",
			exitNotFound},
		{object.ErrUnsupported, `no other node can take "x": the cluster has one node`,
			"Have another node join (tendril cluster join), or ask for fewer replicas: tendril replicate --replicas",
			exitFailure},
	} {
		code, step := classify(object.FromCode(object.CodeOf(test.why), test.text))
		if code != test.code || step != test.want {
			t.Errorf("%s: exit code %d: %q", test.text, code, step)
		}
	}
}

// Who may not ask is not told to look at a list, which is refused, too.
func TestNoStepForWhoMayNot(t *testing.T) {
	err := hinted{object.FromCode(object.CodeOf(object.ErrPermission), "only root may"), "See which there are"}
	if code, step := classify(err); code != exitPermission || step != "" {
		t.Errorf("exit code %d: %q", code, step)
	}
}

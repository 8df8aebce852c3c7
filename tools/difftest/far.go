package main

import (
	"context"
	"fmt"
	"slices"

	"tendril/tools/e2e/rig"
)

// spans is the -far whose contexts have several members: dt.h makes them of all devices, and queues on the last.
const spans = "span"

// isFar says whether a way goes by the front door for other machines.
func isFar(way string) bool { return way == "tls" || way == "tcp" || way == spans }

// elsewhere says whether the devices of a way are another machine's, or as if.
func (d *differ) elsewhere(way string) bool { return isFar(way) || d.node == nil && !d.self }

// goFar logs in to the test's own node by its front door for other machines, where a way goes by it.
func (d *differ) goFar(ctx context.Context) error {
	far := slices.ContainsFunc(d.ways, isFar)
	for _, way := range d.ways {
		if way != "" && (d.node == nil || way != "unix" && !isFar(way)) {
			return fmt.Errorf("-far %q: want unix, tls, tcp or span, and neither -server nor -self", way)
		}
	}
	if !far {
		return nil
	}
	at, err := d.node.Listening(ctx)
	if err != nil {
		return err
	}
	d.server = at
	return d.node.Login(ctx, d.work, at)
}

// farEnv has credentials that nobody else sees.
func (d *differ) farEnv() []string { return append(rig.Native(), "XDG_CONFIG_HOME="+d.work) }

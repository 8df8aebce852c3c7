package main

import (
	"context"
	"fmt"
	"slices"

	"tendril/tools/e2e/rig"
)

// Ways whose contexts have several members: dt.h makes them of all devices, and queues on the last.
const (
	spans = "span"  // what goes between two members passes the program
	links = "links" // it goes over a link between their workers
)

// linked is what the node's log says of a link that is up.
const linked = "two workers are linked"

// isFar says whether a way goes by the front door for other machines.
func isFar(way string) bool { return way == "tls" || way == "tcp" || way == spans || way == links }

// elsewhere says whether the devices of a way are another machine's, or as if.
func (d *differ) elsewhere(way string) bool { return isFar(way) || d.node == nil && !d.self }

// goFar logs in to the test's own node by its front door for other machines, where a way goes by it.
func (d *differ) goFar(ctx context.Context) error {
	far := slices.ContainsFunc(d.ways, isFar)
	for _, way := range d.ways {
		if way != "" && (d.node == nil || way != "unix" && !isFar(way)) {
			return fmt.Errorf("-far %q: want unix, tls, tcp, span or links, and neither -server nor -self", way)
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
	if slices.Contains(d.ways, links) {
		if slices.Contains(d.ways, spans) {
			return fmt.Errorf("-far %s and %s: the node is a peer of itself or not", spans, links)
		}
		if err := d.node.AddPeer(ctx, d.node, at); err != nil {
			return err
		}
	}
	return d.node.Login(ctx, d.work, at)
}

// farEnv has credentials that nobody else sees.
func (d *differ) farEnv() []string {
	return append(rig.Native(), "XDG_CONFIG_HOME="+d.work, "TENDRIL_STACKS="+d.work)
}

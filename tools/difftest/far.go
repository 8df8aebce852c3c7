package main

import (
	"context"
	"fmt"

	"tendril/tools/e2e/rig"
)

// spans is the -far whose contexts have several members: dt.h makes them of all devices, and queues on the last.
const spans = "span"

// goFar logs in to the test's own node by its front door for other machines.
func (d *differ) goFar(ctx context.Context) error {
	if d.node == nil || d.far != "tls" && d.far != "tcp" && d.far != spans {
		return fmt.Errorf("-far %q: want tls, tcp or span, and neither -server nor -self", d.far)
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

package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"tendril/tools/e2e/rig"
)

// Ways to a node. Contexts of spans and links have several members: dt.h makes them of all devices, and queues on the
// last.
const (
	unix   = "unix"
	tls    = "tls"
	tcp    = "tcp"
	spans  = "span"   // what goes between two members passes the program
	links  = "links"  // it goes over a link between their workers
	copies = "copies" // the socket of a node that computes in no program's memory
)

// linked is what the node's log says of a link that is up.
const linked = "two workers are linked"

// way is how programs are forwarded, and which.
type way struct {
	name   string // "": unix, or -server's
	only   *regexp.Regexp
	node   *rig.Node // nil: another machine's, or the same driver again
	server string    // HOST:PORT; "" is the node's socket
}

// readWays reads -far: NAME or NAME=REGEX, with commas between them.
func readWays(text string) (ways []*way, err error) {
	for one := range strings.SplitSeq(text, ",") {
		name, only, _ := strings.Cut(one, "=")
		w := &way{name: name}
		if w.only, err = regexp.Compile(only); err != nil {
			return nil, fmt.Errorf("-far %q: %w", one, err)
		}
		if name != "" && name != unix && name != copies && !isFar(name) {
			return nil, fmt.Errorf("-far %q: want unix, tls, tcp, span, links or copies", name)
		}
		ways = append(ways, w)
	}
	return ways, nil
}

// isFar says whether a way goes by the front door for other machines.
func isFar(name string) bool { return name == tls || name == tcp || name == spans || name == links }

// elsewhere says whether the devices of a way are another machine's, or as if.
func (d *differ) elsewhere(w *way) bool { return isFar(w.name) || w.server != "" }

// startNodes starts the test's own nodes: one for most ways, one whose workers are linked with each other, one with a
// setting.
func (d *differ) startNodes(ctx context.Context) error {
	settings := map[string][]string{copies: {"TENDRIL_IN_PLACE=off"}, links: nil}
	for _, w := range d.ways {
		kind := w.name
		if _, own := settings[kind]; !own {
			kind = unix
		}
		n := d.nodes[kind]
		if n == nil {
			var err error
			if n, err = rig.Start(ctx, d.bin, append(settings[kind], "TENDRIL_LISTEN=127.0.0.1:0")...); err != nil {
				return err
			}
			d.nodes[kind] = n
		}
		w.node = n
		if err := d.goFar(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// goFar logs in to a way's node by its front door for other machines, where the way goes by it.
func (d *differ) goFar(ctx context.Context, w *way) error {
	if !isFar(w.name) {
		return nil
	}
	at, err := w.node.Listening(ctx)
	if err != nil {
		return err
	}
	first := !slices.ContainsFunc(d.ways, func(x *way) bool { return x.server == at })
	w.server = at
	if w.name == links {
		if err := w.node.AddPeer(ctx, w.node, at); err != nil {
			return err
		}
	}
	if !first {
		return nil
	}
	return w.node.Login(ctx, d.work, at)
}

// stopNodes stops them, and tells of links that never came up.
func (d *differ) stopNodes(err error) error {
	for kind, n := range d.nodes {
		if log := n.Log(); err == nil && kind == links && !strings.Contains(log, linked) {
			err = fmt.Errorf("-far %s: no link came up:\n%s", links, log)
		}
		err = errors.Join(err, n.Stop())
	}
	return err
}

// farEnv has credentials that nobody else sees.
func (d *differ) farEnv() []string {
	return append(rig.Native(), "XDG_CONFIG_HOME="+d.work, "TENDRIL_STACKS="+d.work)
}

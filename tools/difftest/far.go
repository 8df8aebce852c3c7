package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

// compareOnNodes compares the programs on nodes of the test's own: first by the socket, then by the other ways, whose
// nodes begin with what the first has compiled. By each anew it would be most of what they compute.
func (d *differ) compareOnNodes(ctx context.Context, programs []*program) (same bool, err error) {
	defer func() { err = d.stopNodes(err) }()
	same = true
	near := slices.DeleteFunc(slices.Clone(d.ways), func(w *way) bool { return kindOf(w) != unix })
	others := slices.DeleteFunc(slices.Clone(d.ways), func(w *way) bool { return kindOf(w) == unix })
	for _, ways := range [][]*way{near, others} {
		if len(ways) == 0 {
			continue
		}
		if err := d.startNodes(ctx, ways); err != nil {
			return false, err
		}
		ok, err := d.compareAll(ctx, programs, ways)
		if same = same && ok; err != nil {
			return false, err
		}
		if len(near) > 0 && len(others) > 0 && d.kernels == "" {
			if err := d.keepKernels(ctx, d.nodes[unix]); err != nil {
				return false, err
			}
		}
	}
	return same, nil
}

// keepKernels saves what a node has compiled once its sessions, whose programs have ended, have ended too.
func (d *differ) keepKernels(ctx context.Context, n *rig.Node) error {
	if err := n.AwaitIdle(ctx); err != nil {
		return err
	}
	d.kernels = filepath.Join(d.work, ".kernels") // a name of no program
	return n.SaveKernels(d.kernels)
}

// kindOf names the node of a way: one for the socket, one as if it were another machine, one whose workers are linked
// with each other, one with a setting.
func kindOf(w *way) string {
	switch w.name {
	case "", unix:
		return unix
	case tls, tcp, spans:
		return tcp
	}
	return w.name
}

// startNodes starts the nodes of ways.
func (d *differ) startNodes(ctx context.Context, ways []*way) error {
	for _, w := range ways {
		kind := kindOf(w)
		n := d.nodes[kind]
		if n == nil {
			env := []string{"TENDRIL_LISTEN=127.0.0.1:0"}
			if kind == copies {
				env = append(env, "TENDRIL_IN_PLACE=off")
			}
			var err error
			if n, err = rig.StartWith(ctx, d.bin, rig.Options{Env: env, Kernels: d.kernels}); err != nil {
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

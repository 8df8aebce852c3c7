package e2e

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

// clustered starts nodes that are one cluster. Verbs at the first one know the others.
func clustered(t *testing.T, names ...string) (list []*rig.Node) {
	t.Helper()
	for _, name := range names {
		list = append(list, node(t, "TENDRIL_NODE_NAME="+name, "TENDRIL_LISTEN=127.0.0.1:0",
			"TENDRIL_CREDENTIALS="+filepath.Join(t.TempDir(), "logins")))
	}
	status, err := list[0].Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list[1:] {
		token, err := list[0].Run(t.Context(), "token", "create", "--role", "node", "--once")
		if err != nil {
			t.Fatal(err, token)
		}
		fields := strings.Fields(token)
		if out, err := n.Run(t.Context(), "cluster", "join", status.Node.Listen, "--token", fields[len(fields)-1]); err != nil {
			t.Fatal(err, out)
		}
	}
	eventually(t, func() error {
		out, err := list[0].Run(t.Context(), "devices", "--nodes")
		for _, name := range names {
			if !strings.Contains(out, "\n"+name+" ") {
				return errors.New(out)
			}
		}
		return err
	})
	return list
}

// A program sees the devices of all nodes in one platform, and computes on each of them, without a login.
func TestProgramOverTheClustersNodes(t *testing.T) {
	t.Parallel()
	need(t, "clinfo", installed("clinfo"))
	list := clustered(t, "a", "b")
	said, complained, err := rig.Said(list[0].Command(t.Context(), "run", "--nodes", "--", "clinfo", "--list"), limit)
	if err != nil || strings.Count(said, "Platform #") != 1 || strings.Count(said, "Device #") < 2 {
		t.Errorf("%v, said %q, complained %q", err, said, complained)
	}
	said, complained, err = rig.Said(list[0].Command(t.Context(), "run", "--", "clinfo", "--list"), limit)
	if err != nil || strings.Count(said, "Device #") != 1 {
		t.Errorf("without --nodes: %v, said %q, complained %q", err, said, complained)
	}
	s := converse(t, list[0].Command(t.Context(), "run", "--nodes", "--", cProgram(t, "../bench/c/span.c"), "16"))
	for _, what := range []string{"push", "chain", "events"} { // it checks the results
		s.ask(what)
	}
	for _, n := range list {
		awaitLinks(t, n, "that the workers of the two nodes are linked", func(l []linkStatus) bool {
			return len(l) == 1 && l[0].Up
		})
	}
}

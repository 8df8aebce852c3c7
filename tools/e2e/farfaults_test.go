package e2e

import (
	"strings"
	"testing"
)

// TestFaultsFromElsewhere: what a program of another machine does to its worker costs it its own session alone, and
// what is only large works: a kernel that takes more memory than there is, a build that would not end, a source of 100
// MiB. The same on this machine: TestWorkerCrash, TestLargeSource, and TestBuildTime of forwarding/worker.
func TestFaultsFromElsewhere(t *testing.T) {
	t.Parallel()
	n, at, config := far(t)
	elsewhere := func(t *testing.T, flags ...string) *program {
		t.Helper()
		need(t, "cc", noCC)
		need(t, "driver", hasDriver())
		args := append([]string{"run", "--server", at}, flags...)
		p := begin(t, n.Far(t.Context(), config, append(args, "--", session)...))
		p.ready()
		return p
	}
	bystander := elsewhere(t)
	t.Run("a kernel exhausts memory", func(t *testing.T) {
		p := elsewhere(t)
		failed(t, p.ask("hog 268435456"))
		failed(t, p.ask("verify"))
		comesBack(t, p)
	})
	t.Run("a build does not end", func(t *testing.T) {
		p := elsewhere(t, "--build-time", "15s")
		p.want("compile 0", "compile")
		bystander.want("add 0", "add 2")
		p.want("errors told", "errors")
		failed(t, p.ask("add 1"))
		comesBack(t, p)
		p.in.Close()
		p.cmd.Wait()
		if said := p.err.String(); !strings.Contains(said, "--build-time") {
			t.Errorf("the program was told: %s", said)
		}
	})
	t.Run("a source of 100 MiB", func(t *testing.T) {
		p := elsewhere(t)
		p.want("large 0", "large 100")
		p.want("add 0", "add 1")
		p.want("good", "verify")
	})
	bystander.want("add 0", "add 3")
	bystander.want("good", "verify")
}

// comesBack wants a program that has lost its worker to know, and to get another one.
func comesBack(t *testing.T, p *program) {
	t.Helper()
	p.want("errors told", "errors")
	p.want("again", "again")
	p.want("add 0", "add 5")
	p.want("good", "verify")
}

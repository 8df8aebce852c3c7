package e2e

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"tendril/tools/e2e/rig"
)

// as runs a verb as another user.
func as(t *testing.T, n *rig.Node, uid uint32, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := n.Command(t.Context(), args...)
	cmd.Dir = "/"
	cmd.Env = append(cmd.Env, "HOME=/nonexistent")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Stdin = strings.NewReader(stdin)
	return rig.Output(cmd)
}

// TestUsersAreTenants: what one user holds another neither sees nor gets, and both compute.
func TestUsersAreTenants(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: only root can start programs as other users")
	}
	n := node(t)
	const alice, bob = 54321, 54322
	out, err := as(t, n, alice, "", "version")
	if errors.Is(err, os.ErrPermission) || err != nil && strings.Contains(err.Error(), "permission denied") {
		t.Skipf("skipped: other users cannot reach %s: %v", n.Tendril(), err)
	}
	if err != nil {
		t.Fatal(err, out)
	}
	id, err := as(t, n, alice, "alice's", "put", "-", "--name", "secret")
	if err != nil {
		t.Fatal(err)
	}
	id = strings.Fields(id)[0]
	if got, err := as(t, n, alice, "", "get", "secret", "-o", "-"); err != nil || got != "alice's" {
		t.Errorf("alice gets %q, %v", got, err)
	}
	for _, key := range []string{"secret", id} {
		if got, err := as(t, n, bob, "", "get", key, "-o", "-"); err == nil || strings.Contains(got, "alice") {
			t.Errorf("bob gets %s: %q", key, got)
		}
		if _, err := as(t, n, bob, "", "rm", key); err == nil {
			t.Errorf("bob removes %s", key)
		}
	}
	if got, err := as(t, n, bob, "", "ls", "--json"); err != nil || strings.Contains(got, id) {
		t.Errorf("bob lists %s, %v", got, err)
	}
	if _, err := as(t, n, bob, "bob's", "put", "-", "--name", "secret"); err != nil {
		t.Errorf("bob cannot use a name that alice uses: %v", err)
	}
	if got, err := as(t, n, alice, "", "get", "secret", "-o", "-"); err != nil || got != "alice's" {
		t.Errorf("alice gets %q after bob put his, %v", got, err)
	}
	need(t, "driver", hasDriver())
	need(t, "clinfo", installed("clinfo"))
	for _, uid := range []uint32{alice, bob} {
		if got, err := as(t, n, uid, "", "run", "--", "clinfo", "--list"); err != nil || !strings.Contains(got, "Tendril") {
			t.Errorf("user %d sees no device: %q, %v", uid, got, err)
		}
	}
	need(t, "cc", noCC)
	if _, err := rig.Output(exec.Command("chmod", "-R", "a+rX", strings.TrimSuffix(session, "/session"))); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []uint32{alice, bob} {
		got, err := as(t, n, uid, "open\nadd 4\nverify\nquit\n", "run", "--", session)
		if err != nil || !strings.Contains(got, "add 0\ngood") {
			t.Errorf("user %d computes %q, %v", uid, got, err)
		}
	}
}

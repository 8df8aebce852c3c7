package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// inside runs a verb as root of a container: a user namespace whose numbers begin at first, and a PID namespace.
func inside(t *testing.T, n *rig.Node, first int, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := n.Command(t.Context(), args...)
	cmd.Dir = "/"
	// As a container's mount would have it: of sockets under /tmp only the user's own and root's are believed, and in
	// here root is nobody.
	mount := fmt.Sprintf("/var/tmp/tendril-e2e-%d", os.Getpid())
	if err := os.Symlink(n.Dir, mount); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(mount)
	own, err := os.MkdirTemp("/var/tmp", "tendril-e2e-") // for what is a container's alone
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(own)
	if err := os.Chown(own, first, first); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "HOME=/nonexistent", "XDG_RUNTIME_DIR="+own,
		"TENDRIL_SOCKET="+filepath.Join(mount, "tendril.sock"))
	numbers := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: 1000}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		UidMappings: numbers, GidMappings: numbers, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: 0, Gid: 0},
	}
	cmd.Stdin = strings.NewReader(stdin)
	return rig.Output(cmd)
}

// TestContainersOfOnePersonAreOneTenant: the numbers under which a person's containers run are configured as one
// tenant. They share what they have, and another's container has no part in it.
func TestContainersOfOnePersonAreOneTenant(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("skipped: only root can give user namespaces numbers of others")
	}
	const first, second, other = 2_100_000, 2_200_000, 2_300_000
	config := filepath.Join(t.TempDir(), "tendril.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[tenants.alice]\nusers = [%d]\ngroups = [%d]\n", first, second),
		0o600); err != nil {
		t.Fatal(err)
	}
	n := node(t, "TENDRIL_CONFIG="+config)
	if out, err := inside(t, n, first, "", "version"); err != nil {
		t.Skipf("skipped: no user namespaces here, or they cannot reach %s: %v%s", n.Tendril(), err, out)
	}
	if _, err := inside(t, n, first, "hers", "put", "-", "--name", "shared"); err != nil {
		t.Fatal(err)
	}
	if got, err := inside(t, n, second, "", "get", "shared", "-o", "-"); err != nil || got != "hers" {
		t.Errorf("her second container gets %q, %v", got, err)
	}
	if got, err := inside(t, n, other, "", "get", "shared", "-o", "-"); err == nil {
		t.Errorf("another's container gets %q", got)
	}
	if got, err := n.Run(t.Context(), "get", "shared", "-o", "-"); err == nil { // root is a tenant like others
		t.Errorf("the machine's root gets %q", got)
	}
	if _, err := inside(t, n, second, "", "rm", "shared"); err != nil {
		t.Errorf("her second container removes it: %v", err)
	}
	need(t, "driver", hasDriver())
	need(t, "clinfo", installed("clinfo"))
	for _, container := range []int{first, second, other} {
		if got, err := inside(t, n, container, "", "run", "--", "clinfo", "--list"); err != nil ||
			!strings.Contains(got, "Tendril") {
			t.Errorf("container %d sees no device: %q, %v", container, got, err)
		}
	}
}

// TestUsersAreTenants: what one user holds another neither sees nor gets, and both compute.
func TestUsersAreTenants(t *testing.T) {
	t.Parallel()
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
		if got, err := as(t, n, uid, "", "run", "--", "clinfo", "--list"); err != nil ||
			!strings.Contains(got, "Tendril") {
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

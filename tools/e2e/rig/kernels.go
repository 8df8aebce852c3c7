package rig

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"

	"tendril/daemon/tenancy"
)

// Compiling is most of what a short session's processor time goes for, and a node that was just made has compiled
// nothing. What one node has compiled can be given to those that are started later.

// SaveKernels copies what drivers have compiled for the caller's sessions, which have ended, to a directory that is not
// there yet.
func (n *Node) SaveKernels(dir string) error {
	_, err := Output(exec.Command("cp", "-a", n.cacheOf(ownTenant()), dir))
	return err
}

// giveKernels gives the node, whose daemon has not been started, what SaveKernels has saved: for the caller's tenant
// and for Login's. A daemon of root's drops what does not belong to its tenant's user, and its users are the first
// numbers that no daemon of the machine has given out. So the node is told numbers that no other is likely to have.
func (n *Node) giveKernels(dir string) error {
	numbers := map[string]uint32{}
	first := firstNumber + 2*rand.Uint32N(numberPairs)
	for i, tenant := range []string{ownTenant(), loginTenant} {
		cache := n.cacheOf(tenant)
		if err := os.MkdirAll(filepath.Dir(cache), 0o711); err != nil {
			return err
		}
		if _, err := Output(exec.Command("cp", "-a", dir, cache)); err != nil {
			return err
		}
		if os.Geteuid() != 0 {
			continue
		}
		numbers[tenant] = first + uint32(i)
		if _, err := Output(exec.Command("chown", "-R", fmt.Sprintf("%d:%[1]d", numbers[tenant]), cache)); err != nil {
			return err
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	text, err := json.Marshal(map[string]any{"format": 1, "tenants": numbers})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(n.Dir, "state", "worker-ids.json"), text, 0o600)
}

// Numbers in the upper part of the daemon's range for tenants' users (workers.DefaultIDs). Where they are none of its
// range, as in some containers, each node compiles for itself.
const (
	firstNumber = 0x70000000 + 1024
	numberPairs = 32000
)

func ownTenant() string { return fmt.Sprintf("uid:%d", os.Getuid()) }

func (n *Node) cacheOf(tenant string) string {
	return filepath.Join(n.Dir, "state", "cache", tenancy.CacheName(tenant))
}

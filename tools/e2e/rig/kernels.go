package rig

import (
	"fmt"
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
// and for Login's. A daemon of root's drops that of the one whose workers come second, since they run as another user.
func (n *Node) giveKernels(dir string) error {
	for _, tenant := range []string{ownTenant(), loginTenant} {
		cache := n.cacheOf(tenant)
		if err := os.MkdirAll(filepath.Dir(cache), 0o711); err != nil {
			return err
		}
		if _, err := Output(exec.Command("cp", "-a", dir, cache)); err != nil {
			return err
		}
	}
	return nil
}

func ownTenant() string { return fmt.Sprintf("uid:%d", os.Getuid()) }

func (n *Node) cacheOf(tenant string) string {
	return filepath.Join(n.Dir, "state", "cache", tenancy.CacheName(tenant))
}

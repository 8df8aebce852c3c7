package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/durable"
	"tendril/daemon"
	"tendril/store/object"
)

// passphraseEnv is the variable that a backup's passphrase is read from.
const passphraseEnv = "TENDRIL_PASSPHRASE"

func (c *cli) clusterBackupVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write the cluster's metadata and its authority's key to an encrypted file",
		Long: "Write the cluster's metadata (nodes, tokens, certificates, tenants, published names; not the objects) and the key of\n" +
			"its authority to FILE, encrypted with a passphrase in the format of age (age-encryption.org). The command asks for\n" +
			"the passphrase, or reads it from standard input or from $" + passphraseEnv + ". FILE must not exist. Whoever has the file\n" +
			"and the passphrase can let anybody into the cluster. Only root and the daemon's own user may do this.",
		Example: "  tendril cluster backup cluster-2026-11-24.age",
		Args:    cobra.ExactArgs(1),
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			if _, err := os.Lstat(args[0]); err == nil {
				return fmt.Errorf("%w: file %s", object.ErrExists, args[0])
			}
			passphrase, err := c.newPassphrase()
			if err != nil {
				return err
			}
			raw, err := admin.Of(conn).BackupCluster(ctx)
			if err != nil {
				return err
			}
			sealed, err := encrypt(raw, passphrase)
			if err != nil {
				return err
			}
			path, err := filepath.Abs(args[0])
			if err == nil {
				err = durable.Replace(path, sealed)
			}
			if err != nil {
				return fmt.Errorf("write %s: %w", args[0], errnoOf(err)) // not of a name that nobody has written
			}
			c.say(fmt.Sprintf("The cluster's metadata and its authority's key are in %s. Keep the passphrase elsewhere.", args[0]))
			return nil
		}),
	}
}

// newPassphrase gets a passphrase, on a terminal twice.
func (c *cli) newPassphrase() (string, error) {
	first, err := c.passphrase("Passphrase")
	if err != nil || os.Getenv(passphraseEnv) != "" || !isTerminal(c.term.in) {
		return first, err
	}
	again, err := c.passphrase("The same once more")
	if err == nil && again != first {
		err = usagef("the two passphrases differ")
	}
	return first, err
}

func (c *cli) passphrase(what string) (string, error) {
	if p := os.Getenv(passphraseEnv); p != "" {
		return p, nil
	}
	return c.askSecret(what, "no passphrase: type one, or set $"+passphraseEnv)
}

func encrypt(plain []byte, passphrase string) ([]byte, error) {
	to, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return nil, err
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, to)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	err = w.Close()
	return sealed.Bytes(), err
}

// maxBackup bounds what is read of a backup.
const maxBackup = 512 << 20

func decrypt(path, passphrase string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	with, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, err
	}
	r, err := age.Decrypt(f, with)
	var no *age.NoIdentityMatchError
	if errors.As(err, &no) {
		return nil, fmt.Errorf("%w: %s: the passphrase is another one", object.ErrPermission, path)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s is no backup that can be read: %w", object.ErrInvalid, path, err)
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxBackup))
	if err != nil {
		return nil, fmt.Errorf("%w: %s is damaged: %w", object.ErrInvalid, path, err)
	}
	return raw, nil
}

func (c *cli) clusterRestoreVerb() *cobra.Command {
	var anyway bool
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore a cluster from a backup, on a node whose daemon is not running",
		Long: "Restore the metadata and the authority of a backup on this machine, as a cluster of one. The daemon must not be\n" +
			"running; start it afterwards. Run the command as the daemon's user. The command asks for the passphrase, or\n" +
			"reads it from standard input or from $" + passphraseEnv + ".\n\n" +
			"Logins and tokens are valid as they were at the backup: what was revoked later must be revoked again. Published names\n" +
			"stay for objects that this node has on disk; the other nodes join again and bring theirs. Do this only when the\n" +
			"cluster is gone: nodes that still run would form a second cluster with the same authority.",
		Example: "  tendril cluster restore cluster.age && systemctl start tendril",
		Args:    cobra.ExactArgs(1),
	}
	for _, f := range daemonFlags {
		if slices.Contains([]string{"state-dir", "config", "name"}, f[0]) {
			cmd.Flags().String(f[0], "", f[1])
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := daemonConfig(cmd)
		if err != nil {
			return asUsage(err)
		}
		passphrase, err := c.passphrase("Passphrase")
		if err != nil {
			return err
		}
		raw, err := decrypt(args[0], passphrase)
		if err != nil {
			return err
		}
		var b daemon.Backup
		if err := json.Unmarshal(raw, &b); err != nil {
			return fmt.Errorf("%w: %s is no backup of a cluster: %w", object.ErrInvalid, args[0], err)
		}
		r, err := daemon.Restore(cfg.StateDir, cfg.NodeName, b, anyway)
		if errors.Is(err, object.ErrExists) {
			return hinted{err, "The node's identity and its objects would stay."}
		}
		if err != nil {
			return err
		}
		return c.sayRestored(r)
	}
	cmd.Flags().BoolVar(&anyway, "anyway", false, "replace what an existing node knows of its cluster")
	return c.jsonFlag(cmd)
}

func (c *cli) sayRestored(r daemon.RestoreResult) error {
	if c.json {
		return c.printJSON(r)
	}
	c.say(fmt.Sprintf("Node %s has the cluster as it was on %s, and is its only member. Start its daemon.", plain(r.Node),
		r.Taken.Local().Format(time.DateTime)))
	if len(r.Dropped) > 0 {
		c.say("These nodes have to join again: " + plain(strings.Join(r.Dropped, ", ")))
	}
	if r.LostObjects > 0 {
		c.say(fmt.Sprintf("No longer published: %s without a replica on this node, until a node with one joins.",
			object.Counted(r.LostObjects, "object")))
	}
	return nil
}

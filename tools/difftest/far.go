package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"tendril/tools/e2e/rig"
)

// goFar logs in to the test's own node by its front door for other machines.
func (d *differ) goFar(ctx context.Context) error {
	if d.node == nil || d.far != "tls" && d.far != "tcp" {
		return fmt.Errorf("-far %q: want tls or tcp, and neither -server nor -self", d.far)
	}
	out, err := d.node.Run(ctx, "status", "--json")
	if err != nil {
		return err
	}
	var status struct {
		Node struct {
			Listen string `json:"listen"`
		} `json:"node"`
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil || status.Node.Listen == "" {
		return errors.Join(fmt.Errorf("the node does not say where it listens: %s", out), err)
	}
	d.server = status.Node.Listen
	token, err := d.node.Run(ctx, "token", "create", "--expires", "1h")
	if err != nil {
		return err
	}
	login := d.node.Command(ctx, "login", d.server)
	login.Env, login.Stdin = d.farEnv(), strings.NewReader(token)
	_, err = rig.Output(login)
	return err
}

// farEnv has credentials that nobody else sees.
func (d *differ) farEnv() []string {
	return append(rig.Native(), "TENDRIL_CREDENTIALS="+filepath.Join(d.work, "credentials"))
}

package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
)

// Listening is the address of the node's front door for other machines; a node has one with TENDRIL_LISTEN=127.0.0.1:0.
func (n *Node) Listening(ctx context.Context) (string, error) {
	s, err := n.Status(ctx)
	if err == nil && s.Node.Listen == "" {
		err = fmt.Errorf("the node does not listen for other machines: %+v", s.Node)
	}
	return s.Node.Listen, err
}

// loginTenant is whom Login's users belong to.
const loginTenant = "lab"

// Login makes the user of a configuration directory (XDG_CONFIG_HOME) one that may come to address, which is the node's
// front door or leads to it.
func (n *Node) Login(ctx context.Context, config, address string) error {
	token, err := n.Run(ctx, "token", "create", "--tenant", loginTenant, "--expires", "1h")
	if err != nil {
		return err
	}
	login := n.Far(ctx, config, "login", address)
	login.Stdin = strings.NewReader(token)
	_, err = Output(login)
	return err
}

// Far is a verb of a user who has that configuration directory and no daemon.
func (n *Node) Far(ctx context.Context, config string, args ...string) *exec.Cmd {
	cmd := n.Command(ctx, args...)
	cmd.Env = append(Native(), "XDG_CONFIG_HOME="+config, "TENDRIL_STACKS="+n.Dir)
	return cmd
}

// AddPeer makes there, whose front door is at address, a node that this one's workers may be linked to. It may be this
// one.
func (n *Node) AddPeer(ctx context.Context, there *Node, address string) error {
	out, err := there.Run(ctx, "peer", "ls", "--json")
	if err != nil {
		return err
	}
	var own struct {
		Authority string `json:"authority"`
	}
	if err := json.Unmarshal([]byte(out), &own); err != nil || own.Authority == "" {
		return fmt.Errorf("the node names no authority of its own: %v: %s", err, out)
	}
	_, err = n.Run(ctx, "peer", "add", address, "--ca", own.Authority)
	return err
}

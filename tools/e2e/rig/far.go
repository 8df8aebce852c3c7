package rig

import (
	"context"
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

// Login makes the user of a configuration directory (XDG_CONFIG_HOME) one that may come to address, which is the node's front door or
// leads to it.
func (n *Node) Login(ctx context.Context, config, address string) error {
	token, err := n.Run(ctx, "token", "create", "--tenant", "lab", "--expires", "1h")
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
	cmd.Env = append(Native(), "XDG_CONFIG_HOME="+config)
	return cmd
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"tendril/client"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session"
	"tendril/ipc"
	"tendril/store/object"

	"github.com/spf13/cobra"
)

// dial connects to the daemon. The caller closes the connection.
func (c *cli) dial() (*client.Conn, error) {
	servers, err := c.serverList()
	switch {
	case err != nil:
		return nil, err
	case len(servers) > 1:
		return nil, usagef("several servers (%s): this verb asks one", strings.Join(servers, ", "))
	case len(servers) == 1:
		return dialServer(servers[0])
	}
	conn, err := client.Dial(c.socketPath())
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, object.ErrVersion), errors.Is(err, object.ErrProtocol):
		return nil, err // somebody answered
	case errors.Is(err, object.ErrBusy): // and lets nobody in now
		return nil, refusedError{c.socketPath(), err}
	}
	return nil, noDaemonError{c.socketPath(), err}
}

// asking is what a verb runs that asks one daemon: ask with a connection to it, and with the verb's arguments.
func (c *cli) asking(ask func(conn *client.Conn, args []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		conn, err := c.dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		return ask(conn, args)
	}
}

func dialServer(server string) (*client.Conn, error) {
	if server == session.LocalServer {
		return client.Dial(ipc.DefaultSocket())
	}
	conn, err := client.DialServer(server, client.Options{})
	if err != nil {
		return nil, serverError{server, err}
	}
	return conn, nil
}

// devicesOf asks for every device of the node.
func devicesOf(conn *client.Conn) (*clwire.Snapshot, error) {
	raw, err := conn.Devices()
	if err != nil {
		return nil, err
	}
	var snap clwire.Snapshot
	if err := json.Unmarshal(raw, &snap); err != nil {
		return nil, fmt.Errorf("the daemon's list of devices: %w", err)
	}
	return &snap, nil
}

// lookup finds an object by what a person wrote: 32 hexadecimal digits are an ID, and a name when no object has that ID.
func lookup(conn *client.Conn, what string) (object.Info, error) {
	id, err := object.ParseID(what)
	if err != nil {
		return conn.StatByName(what)
	}
	info, err := conn.Stat(id)
	if errors.Is(err, object.ErrNotFound) {
		if named, second := conn.StatByName(what); second == nil {
			return named, nil
		}
	}
	return info, err
}

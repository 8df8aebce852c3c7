package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon/inspect"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/settings"
	"tendril/ipc"
	"tendril/store/object"
)

// dial connects to the daemon. The caller closes the connection.
func (c *cli) dial(ctx context.Context) (*client.Conn, error) { return c.dialFor(ctx, "") }

// dialFor is dial for a program that the daemon shows as who asks; "" is this command.
func (c *cli) dialFor(ctx context.Context, program string) (*client.Conn, error) {
	servers, err := c.serverList()
	switch {
	case err != nil:
		return nil, err
	case len(servers) > 1:
		return nil, usagef("several servers (%s): this verb asks one", strings.Join(servers, ", "))
	case len(servers) == 1:
		return c.met(dialServer(ctx, servers[0], program))
	}
	return c.met(dialSocket(ctx, c.socket, program))
}

// met says once a command that a daemon is of another build.
func (c *cli) met(conn *client.Conn, err error) (*client.Conn, error) {
	if err != nil || c.quietBuild || conn.Daemon().Version == version {
		return conn, err
	}
	c.quietBuild = true
	there, do := "the daemon", "After an upgrade replace the daemon: tendril daemon --takeover."
	if conn.Remote() {
		there, do = "the daemon at "+conn.Socket(), "Install the same release on both machines."
	}
	c.say(fmt.Sprintf("tendril: %s is version %s, this command is version %s. %s", there,
		orDash(plain(conn.Daemon().Version)), version, do))
	return conn, nil
}

// dialSocket connects to the daemon of this machine at a socket, "" for where one answers.
func dialSocket(ctx context.Context, socket, program string) (*client.Conn, error) {
	conn, err := client.Dial(ctx, client.Options{Socket: socket, Program: program})
	var none *ipc.NoDaemonError
	var ended *client.EndedError
	switch {
	case errors.As(err, &none):
		return nil, noDaemonError{none}
	case errors.As(err, &ended):
		return nil, refusedError{ended}
	}
	return conn, err
}

// asking is what a verb runs that asks one daemon: ask with a connection to it, and with the verb's arguments.
func (c *cli) asking(ask func(ctx context.Context, conn *client.Conn,
	args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		conn, err := c.dial(cmd.Context())
		if err != nil {
			return err
		}
		defer conn.Close()
		return ask(cmd.Context(), conn, args)
	}
}

func dialServer(ctx context.Context, server, program string) (*client.Conn, error) {
	switch {
	case server == settings.LocalServer:
		return dialSocket(ctx, "", program)
	case filepath.IsAbs(server):
		return dialSocket(ctx, server, program)
	}
	conn, err := client.DialServer(ctx, server, client.Options{Program: program})
	if err != nil {
		return nil, serverError{server, err}
	}
	return conn, nil
}

// devicesOf asks for every device of the node.
func devicesOf(ctx context.Context, conn *client.Conn) (*clwire.Snapshot, error) {
	raw, err := admin.Of(conn).Devices(ctx)
	if err != nil {
		return nil, err
	}
	var snap clwire.Snapshot
	if err := json.Unmarshal(raw, &snap); err != nil {
		return nil, fmt.Errorf("the daemon's list of devices: %w", err)
	}
	return &snap, nil
}

// idMark stands before the digits of an ID, or of its beginning, that are no name; Python has it, too.
const idMark = "id:"

// lookup finds an object by what a person wrote: 32 hexadecimal digits are an ID, and a name when no object has that
// ID; fewer are a name, and when there is none the beginning of an ID. After idMark they are no name.
func lookup(ctx context.Context, conn *client.Conn, what string) (object.Info, error) {
	digits, marked := strings.CutPrefix(what, idMark)
	if id, err := object.ParseID(digits); err == nil {
		info, err := conn.Stat(ctx, id)
		if errors.Is(err, object.ErrNotFound) && !marked {
			if named, second := conn.StatByName(ctx, what); second == nil {
				return named, nil
			}
		}
		return info, err
	}
	if marked && !isShortID(digits) {
		return object.Info{}, usagef("%q: want %d to %d hexadecimal digits after id:", what, leastShortID,
			2*len(object.ID{}))
	}
	info, err := object.Info{}, fmt.Errorf("%w: no object's ID begins with %s", object.ErrNotFound, digits)
	if !marked {
		info, err = conn.StatByName(ctx, what)
	}
	if !errors.Is(err, object.ErrNotFound) || !isShortID(digits) {
		return info, err
	}
	id, err := longID(digits, objectIDs(ctx, conn), err)
	if err != nil {
		return info, err
	}
	return conn.Stat(ctx, id)
}

// idOrName is lookup where the object may lie on other nodes alone, which a name is left to.
func idOrName(ctx context.Context, conn *client.Conn, what string) (object.ID, string, error) {
	digits, marked := strings.CutPrefix(what, idMark)
	if id, err := object.ParseID(digits); err == nil {
		return id, "", nil
	}
	if !marked && !isShortID(what) {
		return object.ID{}, what, nil
	}
	info, err := lookup(ctx, conn, what)
	if err != nil && !marked {
		return object.ID{}, what, nil
	}
	return info.ID, "", err
}

// leastShortID is how many digits of an ID are enough, where no other begins with them.
const leastShortID = 4

func isShortID(what string) bool {
	return len(what) >= leastShortID && len(what) < 2*len(object.ID{}) && strings.Trim(what, "0123456789abcdef") == ""
}

// longID finds the one ID that begins with these digits; none is the error that there was.
func longID(digits string, ids iter.Seq2[object.ID, error], none error) (found object.ID, err error) {
	for id, err := range ids {
		if err != nil {
			return found, err
		}
		if !strings.HasPrefix(id.String(), digits) {
			continue
		}
		if !found.IsZero() {
			return object.ID{}, fmt.Errorf("%w: the IDs %s and %s both begin with %s: write more of it",
				object.ErrInvalid, found, id, digits)
		}
		found = id
	}
	if found.IsZero() {
		return found, none
	}
	return found, nil
}

// objectIDs are those of this tenant's objects.
func objectIDs(ctx context.Context, conn *client.Conn) iter.Seq2[object.ID, error] {
	return func(yield func(object.ID, error) bool) {
		for info, err := range conn.Objects(ctx, client.Query{All: true}) {
			if !yield(info.ID, err) {
				return
			}
		}
	}
}

// tokensOf lists the tokens.
func tokensOf(ctx context.Context, conn *client.Conn) iter.Seq2[inspect.Token, error] {
	return decoded[inspect.Token](admin.Of(conn).EachToken(ctx), "tokens")
}

// tokenIDs are the tokens'.
func tokenIDs(ctx context.Context, conn *client.Conn) iter.Seq2[object.ID, error] {
	return func(yield func(object.ID, error) bool) {
		for x, err := range tokensOf(ctx, conn) {
			var id object.ID
			if err == nil {
				id, err = object.ParseID(x.ID)
			}
			if !yield(id, err) {
				return
			}
		}
	}
}

// decoded gives what a listing of JSON values describes.
func decoded[T any](seq iter.Seq2[json.RawMessage, error], what string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for raw, err := range seq {
			var item T
			if err == nil {
				if err = json.Unmarshal(raw, &item); err != nil {
					err = fmt.Errorf("the daemon's list of %s: %w", what, err)
				}
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

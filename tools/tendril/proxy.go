package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tendril/ipc"
)

// proxyVerb is what ssh runs on the daemon's machine (--server ssh://…).
func (c *cli) proxyVerb() *cobra.Command {
	return &cobra.Command{
		Use:     "proxy",
		Short:   "Copy standard input and output to the daemon's socket",
		Long:    "Copy standard input and output to the daemon's socket: what --server ssh://HOST runs on HOST. Descriptors do not pass.",
		Example: "  ssh gpubox tendril proxy",
		Hidden:  true,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			conn, at, err := ipc.Lookup(c.socket, 0, nil)
			if none := (*ipc.NoDaemonError)(nil); errors.As(err, &none) {
				return noDaemonError{none}
			}
			if err != nil {
				return err
			}
			return splice(conn.Socket(at), c.term.in, c.term.out)
		},
	}
}

// splice copies both ways until the daemon hangs up. The copy from standard input cannot be interrupted; it ends with
// the process, which has nothing left to do by then.
func splice(socket *ipc.Socket, in io.Reader, out io.Writer) error {
	go func() {
		_, _ = io.Copy(socketWriter{socket}, in)
		unix.Shutdown(socket.Descriptor(), unix.SHUT_WR)
	}()
	if _, err := io.Copy(out, socket); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}

// socketWriter hides the socket's other methods from io.Copy.
type socketWriter struct{ io.Writer }

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tendril/client/login"
)

const loginExample = `  tendril login gpubox:7433              # asks for the token
  tendril login gpubox < token.txt
  tendril run --server gpubox -- clinfo -l`

// maxTokenInput bounds what is read as a token, in bytes.
const maxTokenInput = 4096

func (c *cli) loginVerb() *cobra.Command {
	var token, name string
	cmd := &cobra.Command{
		Use:   "login HOST[:PORT]",
		Short: "Get a certificate from another machine's daemon with a token",
		Long: "Get a certificate from the daemon of another machine with a token (tendril token create). The command checks that the\n" +
			"token is that daemon's. It keeps the certificate, and a key that never leaves this machine, in your XDG configuration\n" +
			"directory or in $TENDRIL_CREDENTIALS. It asks for the token, or reads it from standard input, from $TENDRIL_TOKEN,\n" +
			"or from --token, which other users of this machine can see.",
		Example: loginExample,
		GroupID: "node",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.HasPrefix(args[0], "ssh://") {
				return usagef("%s needs no login: tendril run --server %s -- PROGRAM", args[0], args[0])
			}
			if token == "" {
				token = os.Getenv("TENDRIL_TOKEN")
			}
			if token == "" {
				var err error
				if token, err = c.askToken("tendril token create"); err != nil {
					return err
				}
			}
			in, err := login.Login(cmd.Context(), args[0], token, name)
			if err != nil {
				return serverError{args[0], err}
			}
			fmt.Fprintf(c.term.out, "Logged in to %s as %s (%v, tenant %s), until %s; using it renews it.\n", in.Server,
				plain(in.Name), in.Role, plain(in.Tenant), in.Expires.Format("2006-01-02"))
			return nil
		},
	}
	cmd.Flags().StringVar(&token, "token", "", "the token")
	cmd.Flags().StringVar(&name, "name", "", "the name in the certificate (default: this machine's)")
	return cmd
}

// askToken reads a token from standard input; on a terminal it is not shown. create is the command that makes one.
func (c *cli) askToken(create string) (string, error) {
	return c.askSecret("Token", "no token: create one on the other machine with: "+create)
}

// askSecret reads a line that is not shown; none is what is said where there is none.
func (c *cli) askSecret(what, none string) (string, error) {
	if isTerminal(c.term.in) {
		fmt.Fprintf(c.term.err, "%s (not shown): ", what)
		defer fmt.Fprintln(c.term.err)
		defer hideInput(c.term.in)()
	}
	line, err := bufio.NewReader(io.LimitReader(c.term.in, maxTokenInput)).ReadString('\n')
	if line = strings.TrimSpace(line); line == "" {
		if err == nil || err == io.EOF {
			return "", usagef("%s", none)
		}
		return "", err
	}
	return line, nil
}

// hideInput has a terminal not show what is typed, until the function that it returns is called, or a signal ends the
// program.
func hideInput(f *os.File) (show func()) {
	fd := int(f.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}
	}
	hidden := *before
	hidden.Lflag &^= unix.ECHO
	_ = unix.IoctlSetTermios(fd, unix.TCSETS, &hidden)
	restore := func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	go func() { // ends with the program, which reads one token
		if s, told := <-stopped; told {
			restore()
			os.Exit(128 + int(s.(unix.Signal)))
		}
	}()
	return func() {
		signal.Stop(stopped)
		close(stopped)
		restore()
	}
}

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
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
		Short: "Get a certificate of another machine's daemon with a token",
		Long: "Show a token (tendril token create) to the daemon of another machine, check that the daemon is the token's, and keep its\n" +
			"authority and a key of your own, which never leaves this machine, under your XDG configuration directory\n" +
			"(or $TENDRIL_CREDENTIALS). The token is asked for, or read from standard input, or $TENDRIL_TOKEN, or --token (which other\n" +
			"users of this machine can see).",
		Example: loginExample,
		GroupID: "node",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if strings.HasPrefix(args[0], "ssh://") {
				return usagef("%s needs no login but ssh's: tendril run --server %s -- PROGRAM", args[0], args[0])
			}
			if token == "" {
				token = os.Getenv("TENDRIL_TOKEN")
			}
			if token == "" {
				var err error
				if token, err = c.askToken(); err != nil {
					return err
				}
			}
			in, err := client.Login(args[0], token, name)
			if err != nil {
				return serverError{args[0], err}
			}
			fmt.Fprintf(c.term.out, "Logged in to %s as %s (%v, tenant %s), until %s; renewed by use.\n", in.Server, plain(in.Name), in.Role, plain(in.Tenant), in.Expires.Format("2006-01-02"))
			return nil
		},
	}
	cmd.Flags().StringVar(&token, "token", "", "the token")
	cmd.Flags().StringVar(&name, "name", "", "the name in the certificate (default: this machine's)")
	return cmd
}

// askToken reads a token from standard input.
func (c *cli) askToken() (string, error) {
	if isTerminal(c.term.in) {
		fmt.Fprint(c.term.err, "Token: ")
	}
	line, err := bufio.NewReader(io.LimitReader(c.term.in, maxTokenInput)).ReadString('\n')
	if line = strings.TrimSpace(line); line == "" {
		if err == nil || err == io.EOF {
			return "", usagef("no token: make one on the other machine with tendril token create")
		}
		return "", err
	}
	return line, nil
}

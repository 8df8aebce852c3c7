package main

import (
	"encoding/json"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// cli is one run of the command line.
type cli struct {
	term    terminal
	socket  string   // --socket
	servers []string // --server
	json    bool     // --json

	quietBuild bool // that a daemon is of another build has been said, or is said elsewhere
}

// serverList is which other machines are asked: --server, else TENDRIL_SERVER (commas between them) unless a socket is
// named.
func (c *cli) serverList() ([]string, error) {
	list := c.servers
	if len(list) == 0 && c.socket == "" {
		list = strings.FieldsFunc(os.Getenv("TENDRIL_SERVER"), func(r rune) bool { return r == ',' })
	}
	if len(c.servers) > 0 && c.socket != "" {
		return nil, usagef("use --server or --socket: one or the other")
	}
	for _, s := range list {
		if tokenText.MatchString(s) {
			return nil, usagef("--server: that is a token, which is a secret: %s", whereTokensGo)
		}
		if s == "" || strings.ContainsAny(s, ", \t\n") {
			return nil, usagef("--server %q: want HOST:PORT, ssh://USER@HOST, local, or the path of a socket", s)
		}
	}
	return list, nil
}

// jsonFlag gives a listing its --json.
func (c *cli) jsonFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&c.json, "json", false, "print JSON")
	return cmd
}

// printJSON writes v as indented JSON.
func (c *cli) printJSON(v any) error {
	enc := json.NewEncoder(c.term.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// version is stamped by the build (Makefile); the driver library is stamped with the same.
var version = "dev"

package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// sayUsage has the commands of a tree say in our words how they are written, in place of the library's; and a command
// that only holds others refuse one that it does not have, which otherwise would print the help and be good.
func sayUsage(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		sayUsage(below)
	}
	cmd.SuggestFor = otherWords[cmd.Name()]
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error { return inLine(cmd, run(cmd, args)) }
	}
	switch {
	case cmd.Name() == "help":
		cmd.Run, cmd.RunE = nil, func(cmd *cobra.Command, args []string) error {
			asked, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("there is no command %q", strings.Join(args, " "))
			}
			return asked.Help()
		}
	case cmd.HasParent() && cmd.HasSubCommands() && !cmd.Runnable():
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return lineError{cmd, unknownBelow(cmd, args[0])}
		}
	case cmd.Args != nil:
		check := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := misplacedToken(cmd, args); err != nil {
				return lineError{cmd, err}
			}
			err := check(cmd, args)
			if usage := (usageError{}); errors.As(err, &usage) {
				return inLine(cmd, err)
			}
			if err != nil {
				return lineError{cmd, countError(cmd, args)}
			}
			return missingFlag(cmd)
		}
	}
}

// tokenText is what looks like a token, whole or not.
var tokenText = regexp.MustCompile(`(?i)\btdl_[0-9a-z]{16,}`)

// hideTokens leaves of the tokens in a text no more than that they are there: errors end up in logs.
func hideTokens(text string) string { return tokenText.ReplaceAllString(text, "tdl_…") }

// misplacedToken says that an argument is a token, which none may be. A program's own arguments may be anything.
func misplacedToken(cmd *cobra.Command, args []string) error {
	for i, arg := range args {
		if tokenText.MatchString(arg) && !strings.Contains(cmd.Use, "PROGRAM") {
			return fmt.Errorf("argument %d is a token, which is a secret: %s", i+1, whereTokensGo)
		}
	}
	return nil
}

const whereTokensGo = "login and cluster join ask for it, or read it from standard input or --token"

// missingFlag says which flag a command cannot do without.
func missingFlag(cmd *cobra.Command) (err error) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, required := f.Annotations[cobra.BashCompOneRequiredFlag]; required && !f.Changed && err == nil {
			err = lineError{cmd, fmt.Errorf("%s needs --%s", below(cmd), f.Name)}
		}
	})
	return err
}

// inLine gives a fault in how a command was written the command's line.
func inLine(cmd *cobra.Command, err error) error {
	usage := usageError{}
	if line := (lineError{}); !errors.As(err, &usage) || errors.As(err, &line) {
		return err
	}
	if hint := (hinted{}); errors.As(err, &hint) {
		return err
	}
	return lineError{cmd, err}
}

// below is a command's path without the program's name, which stands before every error.
func below(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

func unknownBelow(cmd *cobra.Command, arg string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if cmd.SuggestionsMinimumDistance == 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	near := cmd.SuggestionsFor(arg)
	for _, c := range cmd.Commands() {
		if len(near) == 0 && c.IsAvailableCommand() && isLike(c.Aliases, arg) {
			near = append(near, c.Name())
		}
	}
	if len(near) > 0 {
		return fmt.Errorf("%s has no command %q: did you mean %s?", below(cmd), arg, strings.Join(near, " or "))
	}
	return fmt.Errorf("%s has no command %q: it has %s", below(cmd), arg, strings.Join(names, ", "))
}

// otherWords are what people type for the commands of a name, as other tools have it.
var otherWords = map[string][]string{
	"end": {"kill", "stop", "rm", "delete", "cancel", "release"}, "rm": {"remove", "delete", "del", "unlink"},
	"ls": {"list", "ps"}, "revoke": {"rm", "remove", "delete"}, "create": {"add", "new"}, "add": {"create"},
	"stat": {"info", "inspect", "describe"}, "show": {"stat", "info", "inspect", "describe"}, "mv": {"rename", "move"},
	"get": {"cat", "download", "fetch"}, "put": {"upload", "cp", "add"}, "leases": {"leased"}, "session": {"sessions"},
	"devices": {"device", "gpus"}, "status": {"info"}, "stream": {"streams"}, "token": {"tokens"}, "tenant": {"tenants"},
	"certificate": {"certificates", "cert", "certs"}, "remove": {"rm", "delete"}, "run": {"exec"}, "quota": {"limit"},
	"cluster": {"node", "nodes"}, "servers": {"server"}, "peer": {"peers"}, "version": {"ver"},
}

// isLike reports whether a word is one of others, or nearly.
func isLike(others []string, word string) bool {
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, name := range others {
		names.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	return len(names.SuggestionsFor(word)) > 0
}

// countError says that a command has more or fewer arguments than it takes.
func countError(cmd *cobra.Command, args []string) error {
	wants := strings.TrimSpace(strings.TrimPrefix(cmd.Use, cmd.Name()))
	switch {
	case wants == "" && cmd.HasSubCommands() && len(args) > 0:
		return unknownBelow(cmd, args[0])
	case wants == "":
		return fmt.Errorf("%s takes no arguments, got %q", below(cmd), args)
	case len(args) == 0:
		return fmt.Errorf("%s needs %s", below(cmd), wants)
	}
	return fmt.Errorf("%s takes %s, got %q", below(cmd), wants, args)
}

// flagError says what is wrong with a flag, and what it takes.
func flagError(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &unknown):
		if near := nearFlag(cmd, unknown.GetSpecifiedName()+unknown.GetSpecifiedShortnames()); near != "" {
			err = fmt.Errorf("%w: did you mean %s?", err, near)
		}
	case errors.As(err, &value):
		err = fmt.Errorf("--%s %q: want %s", value.GetFlag().Name, value.GetValue(), kindOf(value.GetFlag()))
	case errors.As(err, &missing):
		dashes := "--"
		if missing.GetSpecifiedShortnames() != "" {
			dashes = "-"
		}
		err = fmt.Errorf("%s%s needs a value", dashes, missing.GetSpecifiedName())
	}
	return lineError{cmd, err}
}

// nearFlag gives the flags of a command whose names are like name, as cobra tells which commands are.
func nearFlag(cmd *cobra.Command, name string) string {
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	near := names.SuggestionsFor(name)
	if len(near) == 0 {
		return ""
	}
	return "--" + strings.Join(near, " or --")
}

// kindOf says what a flag takes.
func kindOf(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "duration":
		return "a time with its unit, such as 30s, 5m or 24h"
	case "int", "int64", "uint", "uint64", "uint32", "uint16":
		return "a whole number"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	case "stringToString":
		return "KEY=VALUE"
	}
	return "another value"
}

package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manVerb prints tendril(1), from the same tree of commands as the help. `make install` writes it down.
func (c *cli) manVerb() *cobra.Command {
	return &cobra.Command{
		Use: "man", Short: "Print tendril(1)", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p := &page{to: c.term.out}
			p.whole(cmd.Root())
			return p.err
		},
	}
}

// page writes roff with the man macros (man-pages(7), groff_man(7)). The first error stays.
type page struct {
	to  io.Writer
	err error
}

// line writes one line of roff.
func (p *page) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.to, format+"\n", args...)
	}
}

// roff is text in which nothing is a request or an escape. A "-" stays one that can be copied.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, `-`, `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

// text writes paragraphs; what is indented stays as it is.
func (p *page) text(s string) {
	verbatim, gap := false, false
	for l := range strings.SplitSeq(strings.Trim(s, "\n"), "\n") {
		indented := strings.HasPrefix(l, "  ")
		switch {
		case strings.TrimSpace(l) == "":
			gap = true
			continue
		case indented && !verbatim:
			p.line(".PP\n.EX")
		case !indented && verbatim:
			p.line(".EE\n.PP")
		case gap && verbatim:
			p.line("")
		case gap:
			p.line(".PP")
		}
		verbatim, gap = indented, false
		p.line("%s", roff(l))
	}
	if verbatim {
		p.line(".EE")
	}
}

// terms writes a list of names and what they mean.
func (p *page) terms(list [][2]string) {
	for _, t := range list {
		p.line(".TP\n.B %s", roff(t[0]))
		p.text(t[1])
	}
}

func (p *page) whole(root *cobra.Command) {
	p.line(".TH TENDRIL 1 \"\" \"tendril %s\" \"User Commands\"", roff(version))
	p.line(".SH NAME\ntendril \\- %s", roff(lower(root.Short)))
	p.line(".SH SYNOPSIS\n.B tendril\n.RI [ options ]\n.I command\n.RI [ arguments ]")
	p.line(".SH DESCRIPTION")
	about, _, _ := strings.Cut(root.Long, exitHelp)
	p.text(about)
	p.line(".SH OPTIONS\nEvery command takes these; its own stand with it below.")
	p.flags(root.PersistentFlags())
	for _, group := range root.Groups() {
		p.line(".SH %s", roff(strings.ToUpper(strings.TrimSuffix(group.Title, ":"))))
		for _, command := range root.Commands() {
			if command.GroupID == group.ID {
				p.command(command)
			}
		}
	}
	p.line(".SH COMPLETION\n.B tendril completion\nprints what makes bash, zsh, fish and PowerShell complete commands, flags and sessions; \\fBmake install\\fP puts it in place.")
	p.line(".SH EXAMPLES")
	p.text(root.Example)
	p.line(".SH ENVIRONMENT")
	p.terms(manEnvironment)
	p.line(".SH FILES")
	p.terms(manFiles)
	p.line(".SH EXIT STATUS")
	p.terms(exitMeanings())
	p.line(".PP")
	p.text(exitOthers)
	p.line(".SH SEE ALSO\n.BR tendril (3),\n.BR clinfo (1),\n.BR memfd_create (2)")
}

// command writes one command and those below it.
func (p *page) command(c *cobra.Command) {
	if c.Hidden {
		return
	}
	p.line(".SS %s", roff(c.UseLine()))
	about := c.Long
	if about == "" {
		about = c.Short + "."
	}
	p.text(about)
	if len(c.Aliases) > 0 {
		p.line(".PP\nAlso: %s.", roff(strings.Join(c.Aliases, ", ")))
	}
	p.flags(c.LocalNonPersistentFlags())
	if c.Example != "" {
		p.line(".PP\nExamples:")
		p.text(c.Example)
	}
	for _, below := range c.Commands() {
		p.command(below)
	}
}

func (p *page) flags(set *pflag.FlagSet) {
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		p.line(".TP\n.BR \"%s\" \"%s\"", roff(name), roff(strings.TrimRight(" "+value, " ")))
		if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "0s" && d != "[]" {
			usage += " (default " + d + ")"
		}
		p.text(usage)
	})
}

// exitMeanings takes exitCodes apart.
func exitMeanings() (list [][2]string) {
	for _, m := range regexp.MustCompile(`(?s)(\d) (.+?)[,.]\s`).FindAllStringSubmatch(exitCodes+"\n", -1) {
		list = append(list, [2]string{m[1], m[2]})
	}
	return list
}

// lower makes a sentence's beginning what stands behind a name.
func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// manEnvironment is what the command line itself reads. Each setting of the daemon has a variable besides, and OpenCL
// programs read more: docs/OPENCL.md.
var manEnvironment = [][2]string{
	{"TENDRIL_SOCKET", "the daemon's socket, as --socket"},
	{"TENDRIL_NODES", "1: a program sees the devices of all nodes of the cluster, as --nodes"},
	{"TENDRIL_SERVER", "daemons of other machines, separated by commas, as --server"},
	{"TENDRIL_CREDENTIALS",
		"directory for keys and certificates of tendril login (default: servers in the configuration directory)"},
	{"TENDRIL_TOKEN", "the token for tendril login, if --token is not given"},
	{"TENDRIL_CONFIG", "the daemon's configuration file, as --config"},
	{"TENDRIL_LIBRARY", "the driver library, as --library of tendril run"},
	{"TENDRIL_SSH", "the program to run for ssh:// instead of ssh(1)"},
	{"TENDRIL_CAPACITY, TENDRIL_LISTEN, …",
		"the daemon's settings: TENDRIL_ and a flag of tendril daemon in capitals, with _ for -; but TENDRIL_NODE_NAME for --name and TENDRIL_NODE_DEVICES for --devices"},
	{"TENDRIL_DEVICES, TENDRIL_RESUME, …", "what tendril run sets for OpenCL programs: tendril env prints it"},
}

var manFiles = [][2]string{
	{"$XDG_RUNTIME_DIR/tendril/tendril.sock",
		"the socket of a user's own daemon; without that variable /tmp/tendril-UID/tendril.sock. Commands and programs look there first"},
	{"/run/tendril/tendril.sock",
		"the socket of the system's daemon, which root runs for everybody. It is used if no daemon of the user's own answers. Root always uses this one, whatever XDG_RUNTIME_DIR says"},
	{"/etc/tendril/tendril.toml, ~/.config/tendril/tendril.toml",
		"the daemon's configuration, for root and for a user: each flag of tendril daemon is a key"},
	{"/var/lib/tendril, ~/.local/state/tendril",
		"a daemon's identity, certificates, objects on disk and compiled kernels (--state-dir)"},
	{"~/.config/tendril/servers", "keys and certificates of tendril login"},
	{"/etc/OpenCL/vendors/*.icd", "drivers that the daemon finds (--vendors)"},
}

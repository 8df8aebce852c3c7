package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpColumns is how wide the help is where no terminal says how wide it may be.
const helpColumns = 80

// fitHelp has the help of a tree of commands fit a terminal.
func fitHelp(root *cobra.Command, columns int) {
	if columns <= 0 {
		columns = helpColumns
	}
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := fmt.Fprint(cmd.OutOrStderr(), usagePage(cmd, columns))
		return err
	})
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		about := cmd.Long
		if about == "" {
			about = cmd.Short + "."
		}
		fmt.Fprint(cmd.OutOrStdout(), fitText(strings.TrimSpace(about), columns), "\n\n", usagePage(cmd, columns))
	})
}

// usagePage is how a command is written: what cobra would print, in lines that fit.
func usagePage(cmd *cobra.Command, columns int) string {
	var b strings.Builder
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Value.Type() == "stringToString": // its default, no labels, would be printed
			f.DefValue = ""
		case f.DefValue == "-1ns": // means forever, as the text says
			f.DefValue = "0s"
		}
	})
	b.WriteString("Usage:\n")
	if cmd.Runnable() && !cmd.HasSubCommands() {
		b.WriteString(indented("  ", cmd.UseLine(), columns))
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("  " + cmd.CommandPath() + " [command]\n")
	}
	if cmd.HasExample() {
		b.WriteString("\nExamples:\n")
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			b.WriteString(fitExample(line, columns))
		}
	}
	b.WriteString(commandList(cmd, columns))
	for _, flags := range []struct{ title, text string }{
		{"Flags", cmd.LocalFlags().FlagUsagesWrapped(columns)},
		{"Global Flags", cmd.InheritedFlags().FlagUsagesWrapped(columns)},
	} {
		if flags.text != "" {
			b.WriteString("\n" + flags.title + ":\n" + strings.TrimRight(optional(flags.text), " \n") + "\n")
		}
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n" + fitText(fmt.Sprintf(`Use "%s [command] --help" for more information about a command.`,
			cmd.CommandPath()), columns) + "\n")
	}
	return b.String()
}

// optional shows a value that may be left out as --wait[=TIME], in as many columns as pflag's own way takes.
func optional(flags string) string {
	return optionalValue.ReplaceAllStringFunc(flags, func(text string) string {
		name, _, _ := strings.Cut(strings.TrimSpace(text), "[")
		return fmt.Sprintf("%-*s", len(text), "[="+name+"]")
	})
}

var optionalValue = regexp.MustCompile(` [A-Z]+\[="[^"]*"\]`)

// commandList are the commands below one, by their groups.
func commandList(cmd *cobra.Command, columns int) string {
	groups := append([]*cobra.Group{}, cmd.Groups()...)
	groups = append(groups, &cobra.Group{Title: "Available Commands:"}) // those of no group
	var b strings.Builder
	for _, g := range groups {
		list := ""
		for _, below := range cmd.Commands() {
			if below.GroupID == g.ID && (below.IsAvailableCommand() || below.Name() == "help") {
				name := fmt.Sprintf("  %-*s ", below.NamePadding(), below.Name())
				list += indented(name, below.Short, columns)
			}
		}
		if list != "" {
			b.WriteString("\n" + g.Title + "\n" + list)
		}
	}
	return b.String()
}

// indented is text behind what stands before its first line, in lines that fit.
func indented(before, text string, columns int) string {
	var b strings.Builder
	_ = hanging(&b, screen{columns: columns}, before, nil, text) // a Builder takes everything
	return b.String()
}

// fitText breaks paragraphs into lines that fit. Lines that begin with a space stay.
func fitText(text string, columns int) string {
	var lines, paragraph []string
	flush := func() {
		if len(paragraph) > 0 {
			lines = append(lines, wrap(strings.Join(paragraph, " "), columns)...)
			paragraph = nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && !strings.HasPrefix(line, " ") {
			paragraph = append(paragraph, line)
			continue
		}
		flush()
		lines = append(lines, line)
	}
	flush()
	return strings.Join(lines, "\n")
}

// fitExample is a line of an example. Where it is too long, its remark goes before it, and the command is broken as a
// shell takes it.
func fitExample(line string, columns int) string {
	if widths.StringWidth(line) <= columns {
		return line + "\n"
	}
	command, remark, has := strings.Cut(line, " # ")
	before := ""
	if has {
		for _, l := range wrap(strings.TrimSpace(remark), columns-len("  # ")) {
			before += "  # " + l + "\n"
		}
	}
	out, words := "", shellWords(strings.TrimSpace(command))
	for i, word := range words {
		last, more := out[strings.LastIndexByte(out, '\n')+1:], ""
		if i < len(words)-1 {
			more = " \\"
		}
		switch {
		case out == "":
			out = "  " + word
		case widths.StringWidth(last+" "+word+more) <= columns:
			out += " " + word
		default:
			out += " \\\n      " + word
		}
	}
	return before + out + "\n"
}

// shellWords splits at spaces that stand in no quotes.
func shellWords(s string) []string {
	quote := rune(0)
	return strings.FieldsFunc(s, func(r rune) bool {
		switch {
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		case r == quote:
			quote = 0
		}
		return r == ' ' && quote == 0
	})
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A table lists calls of the API with one wrong argument each; it becomes a program whose lines are what each call
// answers. Before the line "%%" stands C: objects that the arguments name. Behind it a function a paragraph:
//
//	clFunction
//	  argument = right value ; wrong value ; ! wrong value …
//
// The arguments come in the function's order, each with what is right in a call whose other arguments are wrong. A "!"
// is before a value with which PoCL's own call ends the program, or hangs: it is tried forwarded alone (with any
// driver); before a function's first right value it stands for all its calls. An argument without a wrong value says
// why: "= right value # reason".

// tableCall is one function of a table.
type tableCall struct {
	function  string
	arguments []tableArgument
}

// tableArgument is one of its arguments.
type tableArgument struct {
	name, right string
	wrong       []string
	reason      string // why none is wrong
}

var (
	functionLine = regexp.MustCompile(`^cl\w+$`)
	argumentLine = regexp.MustCompile(`^  (\w+) = (.+)$`)
)

// readTable returns a table's C, and its calls.
func readTable(path string) (before string, calls []tableCall, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	before, rest, ok := strings.Cut(string(text), "\n%%\n")
	if !ok {
		return "", nil, fmt.Errorf("%s: no line with %%%%", path)
	}
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, " \n")
		a := argumentLine.FindStringSubmatch(line)
		switch {
		case line == "", strings.HasPrefix(line, "#"):
		case functionLine.MatchString(line):
			calls = append(calls, tableCall{function: line})
		case a == nil || len(calls) == 0:
			return "", nil, fmt.Errorf("%s: %q is neither a function nor its argument", path, line)
		default:
			c := &calls[len(calls)-1]
			values, reason, _ := strings.Cut(a[2], " # ")
			list := strings.Split(values, " ; ")
			c.arguments = append(c.arguments, tableArgument{a[1], strings.TrimSpace(list[0]), list[1:], reason})
		}
	}
	return before, calls, nil
}

// makesObject says that a function returns an object and takes an errcode_ret.
func (c *tableCall) makesObject() bool {
	return len(c.arguments) > 0 && c.arguments[len(c.arguments)-1].name == "errcode_ret"
}

// writeTable makes a table's program. Its argument, if any, names the function behind which it begins, to go on where a
// driver ended the program, or is "-"; it then says which function begins.
func writeTable(path, program string) error {
	before, calls, err := readTable(path)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(before + "\n")
	for _, c := range calls {
		fmt.Fprintf(&b, "\nstatic void try_%s(void) {\n", c.function)
		c.try(&b, "right", -1, "")
		for i, a := range c.arguments {
			for _, value := range a.wrong {
				c.try(&b, a.name+" "+strings.TrimPrefix(value, "! "), i, value)
			}
		}
		b.WriteString("}\n")
	}
	b.WriteString("\nint main(int argc, char **argv) {\n    int reached = argc < 2 || strcmp(argv[1], \"-\") == 0;\n    begin();\n")
	for _, c := range calls {
		fmt.Fprintf(&b, "    if (reached && argc > 1) SAY(\"%[1]s\", \"begins\");\n    if (reached) try_%[1]s();\n    reached |= argc > 1 && strcmp(argv[1], \"%[1]s\") == 0;\n", c.function)
	}
	// Not return: PoCL's threads may still compile what wrong calls have left under way, and its compiler is taken down
	// under them.
	b.WriteString("    fflush(stdout);\n    _exit(0);\n}\n")
	return os.WriteFile(program, []byte(b.String()), 0o644)
}

// writeTables writes NAME.c for each NAME.table of a directory to another.
func writeTables(from, to string) error {
	tables, err := filepath.Glob(filepath.Join(from, "*.table"))
	if err != nil {
		return err
	}
	for _, table := range tables {
		name := strings.TrimSuffix(filepath.Base(table), ".table") + ".c"
		if err := writeTable(table, filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// try writes one call, whose at-th argument is value.
func (c *tableCall) try(b *strings.Builder, label string, at int, value string) {
	value, ends := strings.CutPrefix(value, "! ")
	ends = ends || len(c.arguments) > 0 && strings.HasPrefix(c.arguments[0].right, "! ")
	arguments := make([]string, len(c.arguments))
	for i, a := range c.arguments {
		if arguments[i] = strings.TrimPrefix(a.right, "! "); i == at {
			arguments[i] = value
		}
	}
	label = fmt.Sprintf("%s %s", c.function, strings.ReplaceAll(label, `"`, `'`))
	label = strings.ReplaceAll(label, ":", ".")
	call := fmt.Sprintf("%s(%s)", c.function, strings.Join(arguments, ", "))
	if ends {
		fmt.Fprintf(b, "    if (natively) SAY(%q, \"skipped\"); else\n", label)
	}
	if c.makesObject() {
		fmt.Fprintf(b, "    OBJECT(%q, %s);\n", label, call)
	} else {
		fmt.Fprintf(b, "    ERR(%q, %s);\n", label, call)
	}
}

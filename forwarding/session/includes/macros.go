package includes

import (
	"strings"
)

// macro is one #define or -D.
type macro struct {
	function bool
	params   []string
	body     string
	option   int // of a -D: its position in the options, else −1
}

const (
	maxMacros    = 16 << 10 // names
	maxExpansion = 8 << 10  // bytes of an #include's operand, expanded
	maxDepth     = 32       // macros inside macros
)

// macros holds what is defined anywhere in what was scanned: conditions are not evaluated, so a name may have several
// definitions. The latest counts, and an operand that is nothing but a name is tried with each.
type macros map[string][]macro

func (m macros) define(text string, option int) {
	n := 0
	for n < len(text) && isWord(text[n]) {
		n++
	}
	if n == 0 || len(text) > maxExpansion {
		return
	}
	name, rest := text[:n], text[n:]
	d := macro{option: option}
	if strings.HasPrefix(rest, "(") {
		list, body, ok := strings.Cut(rest[1:], ")")
		if !ok {
			return
		}
		d.function, rest = true, body
		for _, p := range strings.Split(list, ",") {
			d.params = append(d.params, strings.TrimSpace(p))
		}
	}
	if option >= 0 { // -DNAME=BODY; -DNAME is 1
		body, ok := strings.CutPrefix(rest, "=")
		if !ok {
			body = "1"
		}
		rest = body
	}
	d.body = strings.TrimSpace(rest)
	if _, known := m[name]; !known && len(m) >= maxMacros {
		return
	}
	if len(m[name]) < 8 {
		m[name] = append(m[name], d)
	} else {
		m[name][7] = d
	}
}

// expansions returns what an operand may mean, and for each the position of the -D whose value begins it, or −1.
func (m macros) expansions(operand string) (texts []string, options []int) {
	operand = strings.TrimSpace(operand)
	if ds := m[operand]; len(ds) > 0 {
		for _, d := range ds {
			if !d.function {
				e := expander{m: m, busy: map[string]bool{operand: true}, first: d.option}
				texts, options = append(texts, e.expand(d.body, 1)), append(options, e.first)
			}
		}
		return texts, options
	}
	e := expander{m: m, busy: map[string]bool{}, first: -1}
	texts = append(texts, e.expand(operand, 0))
	return texts, append(options, e.first)
}

type expander struct {
	m     macros
	busy  map[string]bool // names under expansion: they do not expand again
	first int             // the last -D used whose value is an absolute path, or −1
	size  int
}

func (e *expander) expand(s string, depth int) string {
	var out strings.Builder
	for i := 0; i < len(s) && e.size < maxExpansion; {
		switch c := s[i]; {
		case c == '"':
			n := literal(s[i:])
			out.WriteString(s[i : i+n])
			i += n
		case isWord(c) && !isDigit(c):
			n := i
			for n < len(s) && isWord(s[n]) {
				n++
			}
			text, used := e.name(s[i:n], s[n:], depth)
			out.WriteString(text)
			i = n + used
		default:
			out.WriteByte(c)
			i++
		}
		e.size++
	}
	return out.String()
}

// name expands one identifier; used is how much of what follows were its arguments.
func (e *expander) name(name, rest string, depth int) (text string, used int) {
	ds := e.m[name]
	if len(ds) == 0 || e.busy[name] || depth >= maxDepth {
		return name, 0
	}
	d := ds[len(ds)-1]
	if d.option >= 0 && strings.HasPrefix(d.body, "/") {
		e.first = d.option
	}
	body := d.body
	if d.function {
		args, n := arguments(rest)
		if n == 0 || len(args) != len(d.params) {
			return name, 0
		}
		body, used = e.substitute(&d, args, depth), n
	}
	e.busy[name] = true
	defer delete(e.busy, name)
	return e.expand(body, depth+1), used
}

// arguments splits "(a, b)" at the start of s; n is its length, 0 if there is none.
func arguments(s string) (args []string, n int) {
	open := len(s) - len(strings.TrimLeft(s, " \t"))
	if open >= len(s) || s[open] != '(' {
		return nil, 0
	}
	level, start := 0, open+1
	for i := open; i < len(s); i++ {
		switch s[i] {
		case '"':
			i += literal(s[i:]) - 1
		case '(':
			level++
		case ',':
			if level == 1 {
				args = append(args, strings.TrimSpace(s[start:i]))
				start = i + 1
			}
		case ')':
			if level--; level == 0 {
				return append(args, strings.TrimSpace(s[start:i])), i + 1
			}
		}
	}
	return nil, 0
}

// substitute puts arguments into a body: #x as a string, x expanded, a##b pasted.
func (e *expander) substitute(d *macro, args []string, depth int) string {
	value := map[string]string{}
	for i, p := range d.params {
		value[p] = args[i]
	}
	var out strings.Builder
	body := d.body
	for i := 0; i < len(body) && e.size < maxExpansion; e.size++ {
		c := body[i]
		switch {
		case c == '"':
			n := literal(body[i:])
			out.WriteString(body[i : i+n])
			i += n
		case strings.HasPrefix(body[i:], "##"):
			kept := strings.TrimRight(out.String(), " \t")
			out.Reset()
			out.WriteString(kept)
			for i += 2; i < len(body) && isBlank(body[i]); i++ {
			}
		case c == '#' || isWord(c) && !isDigit(c):
			n := i
			if c == '#' {
				for n++; n < len(body) && isBlank(body[n]); n++ {
				}
			}
			start := n
			for n < len(body) && isWord(body[n]) {
				n++
			}
			arg, isParam := value[body[start:n]]
			switch {
			case !isParam:
				out.WriteString(body[i:n])
			case c == '#':
				out.WriteString(`"` + strings.ReplaceAll(arg, `"`, `\"`) + `"`)
			default:
				out.WriteString(e.expand(arg, depth+1))
			}
			if i = n; n == start && c == '#' && !isParam {
				i = max(n, start)
			}
		default:
			out.WriteByte(c)
			i++
		}
	}
	return out.String()
}

// literal is the length of the string literal at the start of s.
func literal(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"', '\n':
			return i + 1
		}
	}
	return len(s)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isWord(c byte) bool {
	return c == '_' || isDigit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
func isBlank(c byte) bool { return c == ' ' || c == '\t' }

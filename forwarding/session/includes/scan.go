package includes

import "strings"

// directive is one that concerns what a file includes.
type directive struct {
	include bool   // else a definition
	operand string // what follows the directive's name
	at      int    // where the operand begins in the source, if it stands there as it is; else −1
}

// scan finds the directives of a source. Comments are skipped, lines that end in a backslash are joined, conditions are
// not evaluated. What __has_include asks for counts as included.
func scan(source string) (found []directive) {
	for at := 0; at < len(source); {
		line, start, next, whole := logicalLine(source, at)
		at = next
		text := strings.TrimLeft(line, " \t\v\f")
		body, ok := strings.CutPrefix(text, "#")
		if !ok {
			continue
		}
		body = strings.TrimLeft(body, " \t")
		name := body
		for i := range len(body) {
			if !isWord(body[i]) {
				name = body[:i]
				break
			}
		}
		operand := strings.TrimLeft(body[len(name):], " \t")
		position := -1
		if whole {
			position = start + len(line) - len(operand)
		}
		switch name {
		case "include", "include_next", "import":
			found = append(found, directive{true, operand, position})
		case "define":
			found = append(found, directive{false, operand, -1})
		case "if", "elif":
			for rest := operand; ; {
				_, after, ok := strings.Cut(rest, "__has_include")
				if !ok {
					break
				}
				if args, n := arguments(after); n > 0 && len(args) == 1 {
					found = append(found, directive{true, args[0], -1})
				}
				rest = after
			}
		}
	}
	return found
}

// logicalLine returns the line at an offset without its comments, where it starts, and where the next one does. whole
// says that the line stands in the source as it was returned.
func logicalLine(source string, at int) (line string, start, next int, whole bool) {
	var out []byte
	start, whole = at, true
	for at < len(source) {
		c := source[at]
		rest := source[at:]
		switch {
		case c == '\n':
			return strings.TrimRight(string(out), "\r"), start, at + 1, whole
		case strings.HasPrefix(rest, "\\\n"):
			at, whole = at+2, false
		case strings.HasPrefix(rest, "\\\r\n"):
			at, whole = at+3, false
		case strings.HasPrefix(rest, "//") && !inName(out):
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest)
			}
			at += end
		case strings.HasPrefix(rest, "/*") && !inName(out):
			whole = false
			end := strings.Index(rest[2:], "*/")
			if end < 0 {
				return string(out), start, len(source), false
			}
			out = append(out, ' ')
			at += end + 4
		case c == '"':
			n := literal(rest)
			if n > 0 && rest[n-1] == '\n' {
				n--
			}
			out = append(out, rest[:n]...)
			at += max(n, 1)
		case c == '\'' && len(rest) > 2 && rest[2] == '\'':
			out = append(out, rest[:3]...)
			at += 3
		default:
			out = append(out, c)
			at++
		}
	}
	return string(out), start, at, whole
}

// inName says that a line is inside the <…> of an #include, where // is no comment.
func inName(line []byte) bool {
	s := strings.TrimLeft(string(line[:min(len(line), 64)]), " \t")
	if !strings.HasPrefix(s, "#") || !strings.Contains(s, "include") {
		return false
	}
	at := strings.IndexByte(string(line), '<')
	return at >= 0 && strings.IndexByte(string(line[at:]), '>') < 0
}

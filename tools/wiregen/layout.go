package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"strings"
	"unicode"
)

// layout draws a payload on one line, as docs/design/codecs.md says: fields in order, those of one form behind it.
func layout(fields []wireField) string {
	var out []string
	last := ""
	for i := 0; i < len(fields); i++ {
		f := fields[i]
		if c := f.tag.condition("m"); c != "" {
			n := together(fields[i:])
			word := strings.Replace(strings.Replace(c, "!m.", "unless ", 1), "m.", "if ", 1)
			verb, of, _ := strings.Cut(word, " ")
			out = append(out, fmt.Sprintf("%s %s (%s)", verb, lower(of), layout(without(fields[i:i+n]))))
			last = ""
			i += n - 1
			continue
		}
		shape, name := shapeOf(f)
		if shape == last && name != "" {
			out[len(out)-1] += " " + name
			continue
		}
		last = shape
		out = append(out, strings.TrimSpace(shape+" "+name))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

// shapeOf is what stands before a field's name, and the name.
func shapeOf(f wireField) (shape, name string) {
	name = lower(f.path[strings.LastIndex(f.path, ".")+1:])
	shape = shapeOfForm(f.form)
	switch {
	case f.tag.has("bits"):
		shape = "bits"
	case f.form.kind == list:
		shape = fmt.Sprintf("u%d × %s", 8*countBytes(f.tag), shapeOfForm(f.form.elem))
	case f.tag.has("len"):
		shape = fmt.Sprintf("%s × %s", lower(f.tag["len"]), shapeOfForm(f.form.elem))
	case f.form.kind == blob && f.tag.has("rest"):
		shape = "rest"
	case f.form.kind == part && f.form.name == f.path:
		name = ""
	}
	return shape, name
}

func shapeOfForm(f *form) string {
	switch f.kind {
	case number:
		if f.signed {
			return fmt.Sprintf("i%d", 8*f.size)
		}
		return fmt.Sprintf("u%d", 8*f.size)
	case boolean:
		if f.size > 1 {
			return fmt.Sprintf("bool%d", 8*f.size)
		}
		return "bool"
	case raw:
		return fmt.Sprintf("%d bytes", f.n)
	case text:
		return "str16"
	case blob:
		return "bytes32"
	case array:
		return fmt.Sprintf("%d × %s", f.n, shapeOfForm(f.elem))
	case labels:
		return "u16 × (str16, str16)"
	case group:
		return "(" + layout(f.fields) + ")"
	}
	return f.name
}

func lower(name string) string {
	runes := []rune(name)
	for i := range runes {
		if !unicode.IsUpper(runes[i]) || i > 0 && i+1 < len(runes) && !unicode.IsUpper(runes[i+1]) {
			break
		}
		runes[i] = unicode.ToLower(runes[i])
	}
	return string(runes)
}

// wrapped breaks a comment's text.
func wrapped(text string) string { return strings.Join(broken(text, 110), "\n// ") }

func broken(text string, most int) (lines []string) {
	line := ""
	for _, w := range strings.Fields(text) {
		if line != "" && len([]rune(line))+1+len([]rune(w)) > most {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + w)
	}
	return append(lines, line)
}

// lineRoom is how much of a layout fits behind a number.
const lineRoom = 78

// shortened cuts what does not fit a line; the whole layout stands above the encoding method.
func shortened(drawn string) string {
	if lines := broken(drawn, lineRoom); len(lines) > 1 {
		return lines[0] + " …"
	}
	return drawn
}

// numbered writes the layouts behind the numbers in the text of the file that has them, and makes the table of their
// names.
func numbered(text []byte, messages []*message) (out []byte, names string, err error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "numbers", text, parser.ParseComments)
	if err != nil {
		return nil, "", err
	}
	of := layouts(messages)
	var table strings.Builder
	table.WriteString("var typeNames = map[Type]string{\n")
	var cuts []cut
	for _, spec := range numbers(f) {
		name := spec.Names[0].Name
		short := strings.TrimPrefix(name, "Type")
		fmt.Fprintf(&table, "%s: %q,\n", name, short)
		drawn, ok := of[short]
		if !ok {
			continue
		}
		from := set.Position(spec.Values[0].End()).Offset
		to := from
		if spec.Comment != nil {
			to = set.Position(spec.Comment.End()).Offset
		}
		cuts = append(cuts, cut{from, to, " // " + shortened(drawn)})
	}
	table.WriteString("}\n")
	var b bytes.Buffer
	at := 0
	for _, c := range cuts {
		b.Write(text[at:c.from])
		b.WriteString(c.text)
		at = c.to
	}
	b.Write(text[at:])
	out, err = format.Source(b.Bytes())
	return out, table.String(), err
}

// cut replaces a part of a text.
type cut struct {
	from, to int
	text     string
}

// numbers lists the constants of the type Type that have a value of their own.
func numbers(f *ast.File) (out []*ast.ValueSpec) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			s := s.(*ast.ValueSpec)
			if id, ok := s.Type.(*ast.Ident); ok && id.Name == "Type" && len(s.Values) == 1 {
				out = append(out, s)
			}
		}
	}
	return out
}

// layouts are the drawings of all numbers that have a payload: of the request, and of the reply behind an arrow.
func layouts(messages []*message) map[string]string {
	requests, replies := map[string]string{}, map[string]string{}
	for _, m := range messages {
		drawn := layout(m.fields)
		if m.how == "record" {
			requests[m.name] = drawn
		}
		for _, n := range m.numbers {
			requests[n] = drawn
		}
		for _, n := range m.replies {
			replies[n] = drawn
		}
	}
	for n, drawn := range replies {
		if requests[n] == "" {
			requests[n] = "nothing"
		}
		requests[n] += " → " + drawn
	}
	return requests
}

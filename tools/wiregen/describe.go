package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// source is the declarations of one folder.
type source struct {
	name    string
	types   map[string]*ast.TypeSpec
	docs    map[string]*ast.CommentGroup // of types
	consts  map[string]ast.Expr
	checks  map[string]bool // types with a method check
	imports map[string]string
	dir     string
}

// read parses a folder without its tests and its codec.go.
func read(dir string) (*source, error) {
	s := &source{types: map[string]*ast.TypeSpec{}, docs: map[string]*ast.CommentGroup{}, consts: map[string]ast.Expr{},
		checks: map[string]bool{}, imports: map[string]string{}, dir: dir}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		if filepath.Base(path) == codecFile || strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		s.name = f.Name.Name
		s.file(f)
	}
	return s, nil
}

func (s *source) file(f *ast.File) {
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		s.imports[path[strings.LastIndex(path, "/")+1:]] = path
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil && d.Name.Name == "check" {
				s.checks[strings.TrimPrefix(expression(d.Recv.List[0].Type), "*")] = true
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				s.declared(d, spec)
			}
		}
	}
}

func (s *source) declared(d *ast.GenDecl, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		s.types[spec.Name.Name] = spec
		s.docs[spec.Name.Name] = cmp.Or(spec.Doc, d.Doc)
	case *ast.ValueSpec:
		if d.Tok == token.CONST && len(spec.Values) == len(spec.Names) {
			for i, n := range spec.Names {
				s.consts[n.Name] = spec.Values[i]
			}
		}
	}
}

// kinds of field.
type kind int

const (
	number  kind = iota // of size bytes
	boolean             // of size bytes
	raw                 // n bytes as they are
	text
	blob
	list  // of elem
	array // n of elem
	part  // a struct of the package, with methods of its own
	group // a struct that is written out here: of another package, or of a fixed size
	labels
)

// form is how a type travels.
type form struct {
	kind   kind
	name   string // of the Go type, as the package writes it
	size   int    // bytes; 0: they vary
	least  int    // bytes at least
	n      int
	elem   *form
	fields []wireField // of a group
	signed bool
}

// wireField is one field of a message.
type wireField struct {
	path string // from the struct on, as Go
	word string // as an error and a layout name it
	form *form
	tag  tag
}

// tag is the words of wire:"…".
type tag map[string]string

func parseTag(f *ast.Field) tag {
	t := tag{}
	if f.Tag == nil {
		return t
	}
	raw, _ := strconv.Unquote(f.Tag.Value)
	for _, w := range strings.Split(reflect.StructTag(raw).Get("wire"), ",") {
		key, value, _ := strings.Cut(w, "=")
		t[key] = value
	}
	return t
}

func (t tag) has(word string) bool { _, ok := t[word]; return ok }

// condition is the Go expression that a field depends on, "" for none.
func (t tag) condition(recv string) string {
	switch {
	case t["if"] != "":
		return recv + "." + t["if"]
	case t["unless"] != "":
		return "!" + recv + "." + t["unless"]
	}
	return ""
}

// message is one struct that the codec covers.
type message struct {
	name    string
	how     string   // record, payload, part
	numbers []string // of a payload: the requests that it is
	replies []string // the requests that it answers
	fields  []wireField
	checked bool
	inside  bool // others hold it
}

func (m *message) size() (size, least int) {
	fixed := true
	for i, f := range m.fields {
		if bits := f.tag.has("bits"); bits {
			if i == 0 || !m.fields[i-1].tag.has("bits") {
				size, least = size+1, least+1
			}
			continue
		}
		if f.form.size == 0 && !(f.form.kind == group && len(f.form.fields) == 0) || len(f.tag.condition("")) > 0 ||
			f.tag.has("len") {
			fixed = false
		}
		if f.tag.condition("") == "" && !f.tag.has("len") {
			least += f.form.least
		}
		size += f.form.size
	}
	if !fixed {
		size = 0
	}
	return size, least
}

// describer makes messages of a package's structs.
type describer struct {
	*source
	foreign map[string]*source
	done    map[string]*message
	order   []*message
}

func describe(dir string) (*describer, error) {
	s, err := read(dir)
	if err != nil {
		return nil, err
	}
	d := &describer{source: s, foreign: map[string]*source{}, done: map[string]*message{}}
	for _, name := range slices.Sorted(mapKeys(s.types)) {
		if how, _ := directive(s.docs[name]); how != "" {
			if _, err := d.message(name); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(d.order, func(a, b *message) int { return cmp.Compare(a.name, b.name) })
	return d, nil
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// directive reads a struct's lines //wire:….
func directive(doc *ast.CommentGroup) (how string, words []string) {
	if doc == nil {
		return "", nil
	}
	for _, c := range doc.List {
		if rest, ok := strings.CutPrefix(c.Text, "//wire:"); ok {
			line := strings.Fields(rest)
			how, words = line[0], append(words, line[1:]...)
		}
	}
	return how, words
}

func (d *describer) message(name string) (*message, error) {
	if m := d.done[name]; m != nil {
		return m, nil
	}
	how, words := directive(d.docs[name])
	st, ok := d.types[name].Type.(*ast.StructType)
	if !ok {
		return nil, fmt.Errorf("%s is no struct", name)
	}
	m := &message{name: name, how: how, numbers: words, checked: d.checks[name]}
	if i := slices.Index(words, "re"); i >= 0 {
		m.numbers, m.replies = words[:i], words[i+1:]
	}
	d.done[name] = m
	var err error
	if m.fields, err = d.fields(d.source, st); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if how != "" {
		d.order = append(d.order, m)
	}
	return m, nil
}

func (d *describer) fields(s *source, st *ast.StructType) (out []wireField, err error) {
	for _, f := range st.Fields.List {
		form, err := d.form(s, f.Type) // of its own: it may be altered
		if err != nil {
			return nil, err
		}
		t := parseTag(f)
		if t.has("u32") && form.kind == boolean {
			form.size, form.least = 4, 4
		}
		names := f.Names
		if len(names) == 0 {
			e := expression(f.Type)
			names = []*ast.Ident{ast.NewIdent(e[strings.LastIndex(e, ".")+1:])}
		}
		for _, n := range names {
			out = append(out, flat(wireField{path: n.Name, word: words(n.Name), form: form, tag: t})...)
		}
	}
	return out, nil
}

// flat writes a group's fields out.
func flat(f wireField) []wireField {
	if f.form.kind != group {
		return []wireField{f}
	}
	var out []wireField
	for _, x := range f.form.fields {
		x.path = f.path + "." + x.path
		out = append(out, x)
	}
	return out
}

// words are a Go name as an error says it: SrcOffset is "src offset".
func words(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && (unicode.IsLower(runes[i-1]) ||
			i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

var basic = map[string]form{
	"byte": {kind: number, size: 1}, "uint8": {kind: number, size: 1}, "uint16": {kind: number, size: 2},
	"uint32": {kind: number, size: 4}, "uint64": {kind: number, size: 8}, "bool": {kind: boolean, size: 1},
	"int32": {kind: number, size: 4, signed: true}, "int64": {kind: number, size: 8, signed: true},
	"string": {kind: text, least: 2},
}

// form says how a type that package s writes so travels.
func (d *describer) form(s *source, e ast.Expr) (*form, error) {
	switch e := e.(type) {
	case *ast.Ident:
		if f, ok := basic[e.Name]; ok {
			f.least = max(f.least, f.size)
			return &f, nil
		}
		return d.named(s, e.Name)
	case *ast.SelectorExpr:
		other, err := d.other(s, expression(e.X))
		if err != nil {
			return nil, err
		}
		return d.named(other, e.Sel.Name)
	case *ast.MapType:
		if expression(e) == "map[string]string" {
			return &form{kind: labels, least: 2}, nil
		}
	case *ast.ArrayType:
		return d.sequence(s, e)
	}
	return nil, fmt.Errorf("no form for %s", expression(e))
}

func (d *describer) named(s *source, name string) (*form, error) {
	spec := s.types[name]
	if spec == nil {
		return nil, fmt.Errorf("no type %s in %s", name, s.dir)
	}
	goName := name
	if s != d.source {
		goName = s.name + "." + name
	}
	st, ok := spec.Type.(*ast.StructType)
	if !ok {
		f, err := d.form(s, spec.Type)
		if err == nil {
			f.name = goName
		}
		return f, err
	}
	if s != d.source {
		fields, err := d.fields(s, st)
		size, least := (&message{fields: fields}).size()
		return &form{kind: group, name: goName, fields: fields, size: size, least: least}, err
	}
	m, err := d.message(name)
	if err != nil {
		return nil, err
	}
	size, least := m.size()
	if size > 0 && !m.checked || m.how == "" {
		return &form{kind: group, name: goName, fields: m.fields, size: size, least: least}, nil
	}
	m.inside = true
	return &form{kind: part, name: goName, least: least}, nil
}

func (d *describer) sequence(s *source, e *ast.ArrayType) (*form, error) {
	elem, err := d.form(s, e.Elt)
	if err != nil {
		return nil, err
	}
	bytes := elem.kind == number && elem.size == 1 && elem.name == ""
	if e.Len == nil {
		if bytes {
			return &form{kind: blob, least: 4}, nil
		}
		return &form{kind: list, elem: elem, least: 2}, nil
	}
	n, err := d.value(s, e.Len)
	if bytes {
		return &form{kind: raw, n: n, size: n, least: n}, err
	}
	return &form{kind: array, n: n, elem: elem, size: n * elem.size, least: n * elem.least}, err
}

// value evaluates an array's length.
func (d *describer) value(s *source, e ast.Expr) (int, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strconv.Atoi(e.Value)
	case *ast.Ident:
		if x := s.consts[e.Name]; x != nil {
			return d.value(s, x)
		}
	}
	return 0, fmt.Errorf("the length %s is no constant of the package", expression(e))
}

// other parses a package of this module that s imports.
func (d *describer) other(s *source, name string) (*source, error) {
	if o := d.foreign[name]; o != nil {
		return o, nil
	}
	path, ok := strings.CutPrefix(s.imports[name], "tendril/")
	if !ok {
		return nil, fmt.Errorf("%s is no package of this module", name)
	}
	root, err := moduleRoot(d.dir)
	if err != nil {
		return nil, err
	}
	o, err := read(filepath.Join(root, path))
	d.foreign[name] = o
	return o, err
}

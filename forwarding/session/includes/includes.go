// Package includes finds the files that an OpenCL C source includes, as its compiler will look for them, so that they
// can be sent to the machine that has the compiler: never a whole directory, only what a directive names.
//
// It reads too much rather than too little: conditions are not evaluated, so that both branches count. It gives up on
// names that a macro of unusual kind builds; then the compiler says what it did not find.
//
// Trust: the source and its files are the program's own, and so are the rights with which they are read. Everything is
// bounded. No locks, no state.
package includes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// ErrTooMuch is wrapped where the files are more than one build may have.
var ErrTooMuch = errors.New("the source includes too much")

// File is one file, by the absolute path that the compiler will spell.
type File struct {
	Path    string
	Content []byte
}

// Set is what a build needs.
type Set struct {
	Dir     string // the working directory
	Files   []File
	Options string // for the place where the files are laid out (clwire.FilesRoot)
}

// Source is what is compiled: the text, and the embedded headers of clCompileProgram by name.
type Source struct {
	Text    string
	Headers map[string]string
}

// Collect finds the files that s includes with these options in the working directory dir. It returns nil if there are
// none: the build then needs nothing but its options as they are.
func Collect(s Source, options, dir string) (*Set, error) {
	if !mayInclude(s) || !strings.HasPrefix(dir, "/") {
		return nil, nil
	}
	c := &collector{dir: dir, headers: s.Headers, macros: macros{}, seen: map[string]bool{}, rewrite: map[int]string{}}
	c.parse(options)
	if err := c.scan(s.Text, "", false, 0); err != nil {
		return nil, err
	}
	if len(c.files) == 0 {
		return nil, nil
	}
	return &Set{Dir: dir, Files: c.files, Options: c.rewritten(options)}, nil
}

func mayInclude(s Source) bool {
	if strings.Contains(s.Text, "include") || strings.Contains(s.Text, "import") {
		return true
	}
	for _, text := range s.Headers {
		if strings.Contains(text, "include") || strings.Contains(text, "import") {
			return true
		}
	}
	return false
}

// Localize turns the absolute names of #include directives into names of the place where the files are laid out.
func Localize(source string) string {
	if !strings.Contains(source, "include") {
		return source
	}
	var out strings.Builder
	done := 0
	for _, d := range scan(source) {
		if d.include && d.at >= 0 && len(d.operand) > 2 && (d.operand[0] == '"' || d.operand[0] == '<') &&
			d.operand[1] == '/' {
			out.WriteString(source[done:d.at+1] + clwire.FilesAlias)
			done = d.at + 1
		}
	}
	if done == 0 {
		return source
	}
	return out.String() + source[done:]
}

type collector struct {
	dir     string
	dirs    []string // of -I, as they are spelled
	headers map[string]string
	macros  macros
	files   []File
	bytes   uint64
	seen    map[string]bool // paths scanned, and embedded headers as "<name"
	rewrite map[int]string  // what to insert into the options, by position
	alias   bool            // some name is absolute
	values  map[int]int     // of a -D by its number: where its value begins in the options
}

// parse reads -I and -D. A word ends at a space outside quotes.
func (c *collector) parse(options string) {
	c.values = map[int]int{}
	want := byte(0)
	for _, w := range words(options) {
		text, at := w.text, w.at
		switch {
		case want != 0:
		case text == "-I" || text == "-D":
			want = text[1]
			continue
		case len(text) > 2 && (text[:2] == "-I" || text[:2] == "-D"):
			want, text, at = text[1], text[2:], at+2
		default:
			continue
		}
		plain := text
		if c := text[0]; (c == '"' || c == '\'') && len(text) > 1 {
			plain, at = strings.TrimSuffix(text[1:], text[:1]), at+1
		}
		if want == 'I' && plain != "" {
			c.dirs = append(c.dirs, plain)
			if plain[0] == '/' {
				c.rewrite[at] = clwire.FilesRoot
			}
		}
		if want == 'D' {
			if eq := strings.IndexByte(plain, '='); eq >= 0 {
				c.values[len(c.values)] = at + eq + 1
			} else {
				c.values[len(c.values)] = -1
			}
			c.macros.define(strings.ReplaceAll(plain, `\"`, `"`), len(c.values)-1)
		}
		want = 0
	}
}

type word struct {
	text string
	at   int
}

func words(s string) (list []word) {
	start, quote := -1, byte(0)
	for i := 0; i <= len(s); i++ {
		switch {
		case i == len(s) || quote == 0 && (isBlank(s[i]) || s[i] == '\n' || s[i] == '\r'):
			if start >= 0 {
				list = append(list, word{s[start:i], start})
			}
			start = -1
		default:
			if start < 0 {
				start = i
			}
			if c := s[i]; c == '"' || c == '\'' {
				if quote == 0 {
					quote = c
				} else if quote == c {
					quote = 0
				}
			}
		}
	}
	return list
}

// rewritten puts the marks into the options.
func (c *collector) rewritten(options string) string {
	at := make([]int, 0, len(c.rewrite))
	for i := range c.rewrite {
		at = append(at, i)
	}
	slices.Sort(at)
	var out strings.Builder
	done := 0
	for _, i := range at {
		out.WriteString(options[done:i] + c.rewrite[i])
		done = i
	}
	out.WriteString(options[done:])
	if c.alias {
		out.WriteString(" -I" + clwire.FilesBase)
	}
	return out.String()
}

const maxNesting = 200 // files inside files

// scan follows the directives of a text. from is the directory of the file it stands in, "" for the program's source.
func (c *collector) scan(text, from string, inFile bool, depth int) error {
	if depth > maxNesting {
		return nil // the compiler refuses it too
	}
	for _, d := range scan(text) {
		if !d.include {
			c.macros.define(d.operand, -1)
			continue
		}
		operands, options := []string{d.operand}, []int{-1}
		if d.operand != "" && d.operand[0] != '"' && d.operand[0] != '<' {
			operands, options = c.macros.expansions(d.operand)
		}
		for i, operand := range operands {
			name, quoted := nameOf(operand)
			if name == "" {
				continue
			}
			if err := c.include(name, quoted, from, inFile, options[i], depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// nameOf reads "name" or <name>.
func nameOf(operand string) (name string, quoted bool) {
	operand = strings.TrimSpace(operand)
	if rest, ok := strings.CutPrefix(operand, `"`); ok {
		name, _, ok = strings.Cut(rest, `"`)
		if !ok {
			return "", false
		}
		return name, true
	}
	if rest, ok := strings.CutPrefix(operand, "<"); ok {
		if name, _, ok = strings.Cut(rest, ">"); ok {
			return strings.TrimSpace(name), false
		}
	}
	return "", false
}

// include finds one name: beside the file that includes it, in the directories of -I, and in the working directory,
// where some compilers look first and some last.
func (c *collector) include(name string, quoted bool, from string, inFile bool, option, depth int) error {
	if strings.IndexByte(name, 0) >= 0 || len(name) > clwire.MaxPath {
		return nil
	}
	if text, ok := c.headers[name]; ok {
		if c.seen["<"+name] {
			return nil
		}
		c.seen["<"+name] = true
		return c.scan(text, from, inFile, depth+1)
	}
	if name[0] == '/' {
		found, err := c.read(name, depth)
		if found && option >= 0 && c.values[option] >= 0 {
			c.rewrite[c.values[option]] = clwire.FilesAlias
		}
		c.alias = c.alias || found
		return err
	}
	if quoted && inFile {
		if found, err := c.read(from+"/"+name, depth); found || err != nil {
			return err
		}
	}
	for _, dir := range c.dirs {
		if found, err := c.read(c.spelled(dir)+"/"+name, depth); err != nil {
			return err
		} else if found {
			break
		}
	}
	_, err := c.read(c.dir+"/"+name, depth)
	return err
}

func (c *collector) spelled(dir string) string {
	if dir[0] == '/' {
		return dir
	}
	return c.dir + "/" + dir
}

// read takes a file and what it includes. It is no fault that there is none.
func (c *collector) read(file string, depth int) (found bool, err error) {
	if len(file) > clwire.MaxPath {
		return false, nil
	}
	if key := path.Clean(file); c.seen[key] {
		return true, nil
	}
	content, ok := contents(file, clwire.MaxFileBytes-c.bytes)
	if !ok {
		return false, nil
	}
	c.bytes += uint64(len(content))
	if c.bytes > clwire.MaxFileBytes || len(c.files) == clwire.MaxFiles {
		return false, fmt.Errorf("%w: more than %d files or %d bytes", ErrTooMuch, clwire.MaxFiles, clwire.MaxFileBytes)
	}
	c.seen[path.Clean(file)] = true
	at := len(c.files)
	c.files = append(c.files, File{Path: file, Content: content})
	dir := file[:strings.LastIndexByte(file, '/')]
	if err := c.scan(string(content), dir, true, depth+1); err != nil {
		return true, err
	}
	if local := Localize(string(content)); len(local) != len(content) {
		c.files[at].Content, c.alias = []byte(local), true
		c.bytes += uint64(len(local) - len(content))
	}
	return true, nil
}

// contents reads a regular file of at most limit bytes, and one more if it is longer.
func contents(file string, limit uint64) ([]byte, bool) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, false
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, false
	}
	content, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	return content, err == nil
}

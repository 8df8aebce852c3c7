package worker

import (
	"regexp"
	"slices"
	"sync"
)

const (
	maxNames       = 4096    // kernels whose facts come with a build
	maxDeclaration = 4 << 10 // bytes from "kernel" to the parameters
	longWord       = 64      // characters; macros may paste a few such words to one
)

var (
	kernelWord = regexp.MustCompile(`\b(?:__)?kernel\b`)
	sourceWord = regexp.MustCompile(`\w+|\S`)
)

// hasLongWord reports whether a source, a binary or a file has a word from which a kernel's name of more than 256
// characters could come. NVIDIA's driver (580) damages its heap when it lists such a name, though it builds and runs
// the kernel: a worker that has met a long word asks its driver for no list.
func hasLongWord(data []byte) bool {
	run := 0
	for _, c := range data {
		if c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' {
			if run++; run > longWord {
				return true
			}
		} else {
			run = 0
		}
	}
	return false
}

// kernelNames finds names of kernels in a source, for where the driver is not asked for its list. What is not found
// here (names that macros make, kernels of included files), the client asks for by name; what is no kernel, the driver
// does not make.
func kernelNames(source []byte) (names []string) {
	for _, at := range kernelWord.FindAllIndex(source, maxNames) {
		name := declared(source[at[1]:min(len(source), at[1]+maxDeclaration)])
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// sourceText is a program's source, which is looked through for kernels when somebody wants their names. Programs that
// were linked of it share it.
type sourceText struct {
	once  sync.Once
	text  []byte   // nil once it was looked through
	names []string // of kernels
}

func (x *sourceText) kernels() []string {
	x.once.Do(func() { x.names, x.text = kernelNames(x.text), nil })
	return x.names
}

// namesIn are the names of the kernels in some sources.
func namesIn(sources []*sourceText) (names []string) {
	for _, x := range sources {
		names = withNames(names, x.kernels())
	}
	return names
}

// withSources is a list with more sources behind it, each once, at most maxNames: a program is linked of many.
func withSources(list, more []*sourceText) []*sourceText {
	for _, x := range more {
		if len(list) < maxNames && !slices.Contains(list, x) {
			list = append(list, x)
		}
	}
	return list
}

// withNames is a list with more names behind it, each once, at most maxNames: a program is linked of many.
func withNames(names, more []string) []string {
	for _, name := range more {
		if len(names) < maxNames && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// declared is the name of the function that is declared behind the word kernel: the word before the first parenthesis
// that is not an attribute's.
func declared(source []byte) string {
	word, depth := "", 0
	for len(source) > 0 {
		at := sourceWord.FindIndex(source)
		if at == nil {
			break
		}
		token := string(source[at[0]:at[1]])
		source = source[at[1]:]
		switch token {
		case "(":
			if depth == 0 && word != "" && word != "__attribute__" && word != "__attribute" {
				return word
			}
			depth++
		case ")":
			depth = max(0, depth-1)
		case ";", "{", "}", "=", "kernel", "__kernel": // the last two: looked at by themselves
			return ""
		default:
			if depth == 0 && token[0] < 0x80 {
				word = token
			}
		}
	}
	return ""
}

package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// difference is one label on which the two runs disagree.
type difference struct{ label, native, other string }

func (d difference) String() string {
	return fmt.Sprintf("%s: native %s, forwarded %s", d.label, d.native, d.other)
}

// rule accepts differences: program | label | native | forwarded | reason, the first four regular expressions that must
// match as a whole. A program that begins with "far:" makes a rule for runs on another machine alone.
type rule struct {
	text                          string
	program, label, native, other *regexp.Regexp
	reason                        string
	used                          bool
	far                           bool
}

func readRules(path string) ([]*rule, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rules []*rule
	for i, l := range strings.Split(string(text), "\n") {
		if strings.TrimSpace(l) == "" || strings.HasPrefix(l, "#") {
			continue
		}
		part := strings.Split(l, " | ")
		if len(part) != 5 || strings.TrimSpace(part[4]) == "" {
			return nil, fmt.Errorf("%s:%d: want program | label | native | forwarded | reason, got %q", path, i+1, l)
		}
		r := &rule{text: l, reason: part[4]}
		part[0], r.far = strings.CutPrefix(part[0], "far:")
		for k, p := range []**regexp.Regexp{&r.program, &r.label, &r.native, &r.other} {
			if *p, err = regexp.Compile("^(?s:" + strings.TrimSpace(part[k]) + ")$"); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, i+1, err)
			}
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func (d *differ) rule(program string, w *way, diff difference) *rule {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.rules {
		if r.far && !d.elsewhere(w) {
			continue
		}
		if r.program.MatchString(program) && r.label.MatchString(diff.label) && r.native.MatchString(diff.native) &&
			r.other.MatchString(diff.other) {
			r.used = true
			return r
		}
	}
	return nil
}

// reportUnused: a rule that accepts nothing of these programs hides nothing, and its reason is no longer true.
func (d *differ) reportUnused(names []string) bool {
	ok := true
	for _, r := range d.rules {
		names := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !r.program.MatchString(name) })
		due := len(names) == 0 // of a program that there is not
		for _, w := range d.ways {
			due = due || (!r.far || d.elsewhere(w)) && slices.ContainsFunc(names, w.only.MatchString)
		}
		if !r.used && due {
			ok = false
			fmt.Println("allow.txt: accepts nothing any more:", r.text)
		}
	}
	return ok
}

// spare keeps the rules of a program that did not run.
func (d *differ) spare(program string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.rules {
		r.used = r.used || r.program.MatchString(program)
	}
}

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What runs over nodes (far.go) is counted by make difftest itself, which takes every way of readWays.

// compared runs scripts against themselves, with rules, and gives the verdict.
func compared(t *testing.T, scripts map[string]string, rules, only string) (same bool, err error) {
	t.Helper()
	d := &differ{bin: ".", tests: t.TempDir(), self: true, limit: 5 * time.Minute, jobs: 2, verbose: true}
	if strings.Contains(scripts["p"], "exec sleep") { // its first run is to end in time
		d.limit = 20 * time.Second
	}
	d.env = []string{"RUNS=" + t.TempDir()}
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(d.tests, name+".sh"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	allow := filepath.Join(d.tests, "allow.txt")
	if err := os.WriteFile(allow, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	return d.run(context.Background(), allow, only, "")
}

// turns says something else each time it runs.
const turns = `n=$(ls "$RUNS" | wc -l); touch "$RUNS/$n"; echo "steady: yes"; echo "turn: $n"` + "\n"

// TestVerdicts: two runs that say the same are the same, what differs is found in every form, and a comparison that
// could find nothing is an error.
func TestVerdicts(t *testing.T) {
	for what, x := range map[string]struct {
		script, rules, only string
		same                bool
		fault               string
	}{
		"the same":                 {script: "echo a: 1; echo b: 2", same: true},
		"another answer":           {script: turns},
		"an answer that is kept":   {script: turns, rules: "p | turn | 0 | 1 | it counts", same: true},
		"a rule for others":        {script: turns, rules: "q | turn | 0 | 1 | it counts"},
		"a rule for far runs":      {script: turns, rules: "far:p | turn | 0 | 1 | it counts"},
		"a rule for less":          {script: turns, rules: "p | turn | 0 | [2-9] | it counts"},
		"a line less":              {script: `echo a: 1; ls "$RUNS" | grep -q . || echo b: 2; touch "$RUNS/x"`},
		"a line more":              {script: `echo a: 1; ls "$RUNS" | grep -q . && echo b: 2; touch "$RUNS/x"`},
		"it fails then":            {script: `echo a: 1; ls "$RUNS" | grep -q . && exit 3; touch "$RUNS/x"`},
		"it hangs then":            {script: `echo a: 1; ls "$RUNS" | grep -q . && exec sleep 99; touch "$RUNS/x"`},
		"it fails at once":         {script: "echo a: 1; exit 3", fault: "natively: failed"},
		"it dies natively, once":   {script: `[ -e "$RUNS/x" ] || { touch "$RUNS/x"; kill -ABRT $$; }; echo a: 1`, same: true},
		"it dies natively, always": {script: "echo a: 1; kill -ABRT $$", fault: "natively: failed"},
		"a label twice":            {script: "echo a: 1; echo a: 1", fault: `the label "a" occurs twice`},
		"it says nothing":          {script: "true", fault: "says nothing"},
		"it is not there":          {script: "exit 77", same: true},
		"no such program":          {script: "echo a: 1", only: "^q$", fault: "no program"},
		"no pattern":               {script: "echo a: 1", only: "(", fault: "-only"},
		"no rule":                  {script: "echo a: 1", rules: "p | a | 1 | 2", fault: "want program"},
		"a rule's pattern":         {script: "echo a: 1", rules: "p | ( | 1 | 2 | why", fault: "allow.txt:3"},
		"a rule's no reason":       {script: "echo a: 1", rules: "p | a | 1 | 2 | ", fault: "want program"},
	} {
		same, err := compared(t, map[string]string{"p": x.script, "app": "echo shared: 1; exit 1"}, "# rules\n\n"+x.rules,
			x.only)
		if same != x.same || (err == nil) != (x.fault == "") || err != nil && !strings.Contains(err.Error(), x.fault) {
			t.Errorf("%s: %v, %v, want %v, %q", what, same, err, x.same, x.fault)
		}
	}
}

// TestRulesThatAcceptNothing: a rule that was not used is reported where its program ran, or where there is none such.
func TestRulesThatAcceptNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "allow.txt")
	text := "here | a | .* | .* | used\nhere | b | .* | .* | not used\nfar:here | c | .* | .* | of ways that are not taken\n" +
		"gone | d | .* | .* | of no program\nskipped | e | .* | .* | of one that did not run\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for far, left := range map[string]string{"": "bd", "tcp": "bcd", "tcp=other": "d"} {
		d := &differ{}
		var err error
		if d.rules, err = readRules(path); err != nil {
			t.Fatal(err)
		}
		if d.ways, err = readWays(far); err != nil {
			t.Fatal(err)
		}
		d.spare("skipped")
		if r := d.rule("here", d.ways[0], difference{"a", "1", "2"}); r == nil || r.reason != "used" {
			t.Errorf("%q: %+v", far, r)
		}
		for _, name := range []string{"b", "c", "d"} {
			if (d.rule("other", d.ways[0], difference{name, "1", "2"})) != nil {
				t.Errorf("%q: %s holds for another program", far, name)
			}
		}
		if d.reportUnused([]string{"here", "skipped"}) {
			t.Errorf("%q: nothing is reported, want %s", far, left)
		}
		for i := range d.rules { // those that are reported are used now
			d.rules[i].used = d.rules[i].used || strings.Contains(left, d.rules[i].label.String()[5:6])
		}
		if !d.reportUnused([]string{"here", "skipped"}) {
			t.Errorf("%q: more than %s is reported", far, left)
		}
	}
	for _, bad := range []string{"train", "tcp,,carrier", "tcp=("} {
		if ways, err := readWays(bad); err == nil {
			t.Errorf("%s: %+v", bad, ways)
		}
	}
}

package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"tendril/daemon"
	"tendril/daemon/inspect"
	"tendril/daemon/workers"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// sample is a table with rows that have what makes them hard to fit.
type sample struct {
	name, head string
	rows       [][]string
}

func samples() []sample {
	old := time.Now().Add(-49*time.Hour - 30*time.Second)
	info := object.Info{ID: object.NewID(), Name: "experiments/2026-11/raccoons/features.npy", SizeBytes: 1 << 30,
		Refs: 12, Created: old}
	short := object.Info{ID: object.NewID(), Name: "写真", SizeBytes: 12, Created: old}
	session := daemon.SessionStatus{ID: 17, PID: 1234567, Tenant: "uid:1000", Since: old, Program: "python3 train.py"}
	far := session
	far.Peer, far.Selector = "192.168.100.100:54321", "type=gpu,mem>=8G"
	return []sample{
		{"objects", objectsHead, [][]string{objectRow(info), objectRow(short)}},
		{"sessions", sessionHead, [][]string{sessionRow(session), sessionRow(far)}},
		{"devices", devicesHead, [][]string{
			{"0", "cpu", "62 GiB", "16", "in place", "pthread-AMD EPYC 9654 96-Core Processor",
				"Portable Computing Language", "cpu-pthread-AMD-EPYC-9654"},
			{"1", "gpu", "140 GiB", "132", "copied", "NVIDIA H200", "NVIDIA CUDA",
				"6f3fbc5b-3c4c-4a3c-8c7e-0123456789ab"}}},
		{"tokens", tokensHead, [][]string{tokenRow(inspect.Token{ID: object.NewID().String(), Role: "read-only",
			State: "revoked", Expires: time.Date(2026, 11, 23, 10, 0, 0, 0, time.Local), Tenant: "uid:1000",
			Clients: []string{"laptop", "gpubox-2.example.org"}})}},
		{"limits", boundsHead, boundRows(workers.Bounds{Processes: 384, MemoryBytes: 1 << 34, Workers: 256,
			KeptWorkers: 32, ProcessesBy: "cgroup", MemoryBy: "the worker's own limit (no cgroup here)",
			CPUBy: "nobody: no cgroup", EndedBy: "cgroup"})},
		{"fallbacks", "NOT USED | WHY", [][]string{{"transparent huge pages",
			"/sys/kernel/mm/transparent_hugepage/shmem_enabled is never: write advise to it"}}},
	}
}

// Tables at the widths that people have.
func TestTables(t *testing.T) {
	for _, columns := range []int{40, 80, 200} {
		var out bytes.Buffer
		for _, x := range samples() {
			fmt.Fprintf(&out, "%s:\n", x.name)
			if err := table(&out, screen{columns: columns}, x.head, x.rows); err != nil {
				t.Fatal(err)
			}
		}
		fitted(t, "tables", columns, out.String())
		goldenText(t, fmt.Sprintf("tables-%d", columns), out.String())
	}
}

// A table in a pipe has every column and every letter, and no colour.
func TestTablesInAPipeAreWhole(t *testing.T) {
	for _, x := range samples() {
		var out bytes.Buffer
		if err := table(&out, screen{}, x.head, x.rows); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != 1+len(x.rows) {
			t.Fatalf("%s: %d lines of %d rows", x.name, len(lines), len(x.rows))
		}
		for i, r := range x.rows {
			for _, cell := range r {
				if !strings.Contains(lines[i+1], cell) {
					t.Errorf("%s: no %q in %q", x.name, cell, lines[i+1])
				}
			}
		}
	}
}

// No width fails, loses a cell of a column that is shown, or goes on for ever.
func TestTablesAtEveryWidth(t *testing.T) {
	for columns := 1; columns < 250; columns++ {
		for _, x := range samples() {
			var out bytes.Buffer
			if err := table(&out, screen{columns: columns}, x.head, x.rows); err != nil {
				t.Fatal(err)
			}
			if columns >= 40 {
				fitted(t, x.name, columns, out.String())
			}
		}
	}
	for _, text := range []string{"", " ", "a", "写真写真写真", "one two  three", strings.Repeat("x", 100)} {
		for width := 1; width < 12; width++ {
			got := strings.Join(wrap(text, width), "")
			if want := strings.ReplaceAll(text, " ", ""); strings.ReplaceAll(got, " ", "") != want {
				t.Errorf("%q in %d columns: %q", text, width, got)
			}
		}
	}
}

var ages = regexp.MustCompile(`\b\d+s `)

// wideAge is an age that takes more columns than that of an object which is a few seconds old.
var wideAge = regexp.MustCompile(`\d[0-9hm]+s `)

// Colours are on a terminal alone, and not where they are not wanted.
func TestColours(t *testing.T) {
	n := startNode(t)
	n.want(0, nil, "put", "--name", "x", n.file("x", []byte("x")))
	for _, env := range [][]string{{}, {"NO_COLOR=1"}, {"TERM=dumb"}, {"TERM="}} {
		code, out := n.onTerminal(80, env, "ls").wait()
		if code != 0 || sgr.MatchString(out) != (len(env) == 0) || !strings.Contains(out, "x") {
			t.Errorf("%q: %d, %q", env, code, out)
		}
	}
	if out := n.want(0, nil, "ls"); sgr.MatchString(out) {
		t.Errorf("in a pipe: %q", out)
	}
}

// What verbs show on terminals of three widths.
func TestOnTerminals(t *testing.T) {
	n := startNode(t)
	x, y := n.file("x", pattern(5000)), n.file("y", []byte("y"))
	list := func(columns int) (out string) {
		await.Until(t, "a list of objects that are a few seconds old", func() bool {
			n.want(0, nil, "put", "--replace", "--name", "experiments/2026-11/raccoons/features.npy", x)
			n.want(0, nil, "put", "--replace", "--name", "写真", y)
			_, out = n.onTerminal(columns, []string{"NO_COLOR=1"}, "ls").wait()
			return !wideAge.MatchString(out)
		})
		return out
	}
	age := func(s string) string { return ages.ReplaceAllString(s, "0s ") }
	for _, columns := range []int{40, 80, 200} {
		out := list(columns)
		fitted(t, "ls", columns, out)
		goldenText(t, fmt.Sprintf("ls-%d", columns), age(out))
		for _, args := range [][]string{{"status"}, {"stat", "写真"}, {"top", "--once"}, {"doctor"}, {"config", "show"},
			{"devices"}, {"session", "ls"}, {"token", "ls"}, {"servers"}, {"stream", "ls"}, {"peer", "ls"}} {
			code, out := n.onTerminal(columns, nil, args...).wait()
			if code != 0 && args[0] != "doctor" || out == "" {
				t.Errorf("%v: %d %s", args, code, out)
			}
			fitted(t, strings.Join(args, " "), columns, out)
		}
	}
}

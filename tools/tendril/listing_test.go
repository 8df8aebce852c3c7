package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func numbers(n int, end error) iter.Seq2[map[string]string, error] {
	return func(yield func(map[string]string, error) bool) {
		for i := range n {
			if !yield(map[string]string{"n": fmt.Sprint(i), "<&>": "ü"}, nil) {
				return
			}
		}
		if end != nil {
			yield(nil, end)
		}
	}
}

// TestListingsPrintAsWholes: what is printed page by page is what would be printed of the whole.
func TestListingsPrintAsWholes(t *testing.T) {
	row := func(m map[string]string) []string { return []string{m["n"], m["<&>"], "x\x1b"} }
	for _, n := range []int{0, 1, 3, tableRows - 2, 2*tableRows + 5} {
		var got, want bytes.Buffer
		list, rows := []map[string]string{}, [][]string{}
		for m := range numbers(n, nil) {
			list, rows = append(list, m), append(rows, row(m))
		}
		enc := json.NewEncoder(&want)
		enc.SetIndent("", "  ")
		if err := errors.Join(enc.Encode(list), listJSON(&got, numbers(n, nil))); err != nil ||
			got.String() != want.String() {
			t.Errorf("JSON of %d: %v, %.200q, want %.200q", n, err, got.String(), want.String())
		}
		got.Reset()
		want.Reset()
		printed, failed := listTable(&got, screen{}, numbers(n, nil), "NUMBER | LETTER | LAST", row)
		err := errors.Join(table(&want, screen{}, "NUMBER | LETTER | LAST", rows), failed)
		if err != nil || got.String() != want.String() || printed != n {
			t.Errorf("table of %d: %v, %.200q, want %.200q", n, err, got.String(), want.String())
		}
	}
}

// TestAListingThatFails says so, behind what came.
func TestAListingThatFails(t *testing.T) {
	var out strings.Builder
	gone := errors.New("gone")
	if _, err := listTable(&out, screen{}, numbers(2, gone), "A | B", func(m map[string]string) []string {
		return []string{m["n"], ""}
	}); err != gone || strings.Count(out.String(), "\n") != 3 {
		t.Errorf("%v, %q", err, out.String())
	}
	if err := listJSON(&out, numbers(2, gone)); err != gone {
		t.Error(err)
	}
}

// An empty list is one sentence beside the output, and no heads; as JSON it is an empty list, and nothing is said.
func TestEmptyLists(t *testing.T) {
	n := startNode(t)
	n.env = append(n.env, "TENDRIL_CREDENTIALS="+n.dir+"/servers")
	for _, x := range []struct {
		says string
		args []string
	}{
		{"You have no sealed objects", []string{"ls"}},
		{"You have no objects.", []string{"ls", "--all"}},
		{`No object has a name that begins with "photo".`, []string{"ls", "photo"}},
		{"No object has the label kind=raw.", []string{"ls", "--label", "kind=raw"}},
		{"Nobody shares an object with you.", []string{"ls", "--shared"}},
		{"You have no published objects.", []string{"ls", "--published"}},
		{`No published object has a name that begins with "photo".`, []string{"ls", "--published", "photo"}},
		{"No objects.", []string{"ls", "--all-tenants"}},
		{"No OpenCL program", []string{"session", "ls"}},
		{"No tokens.", []string{"token", "ls"}},
		{"You have no streams.", []string{"stream", "ls"}},
		{`No stream has a name that begins with "video".`, []string{"stream", "ls", "video"}},
		{"You have no objects.", []string{"top", "--once"}},
		{"You have not logged in to any machine.", []string{"servers"}},
	} {
		code, out, errs := n.run("", x.args...)
		if code != 0 || out != "" || !strings.Contains(errs, x.says) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: %d %q %q", x.args, code, out, errs)
		}
		if code, out, errs := n.run("", append(x.args, "--json")...); code != 0 || out != "[]\n" || errs != "" {
			t.Errorf("%q as JSON: %d %q %q", x.args, code, out, errs)
		}
	}
	if code, out, errs := n.run("", "peer", "ls"); code != 0 || strings.Count(out, "\n") != 1 ||
		!strings.Contains(errs, "No peers.") {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

// One of a thing is not called several.
func TestCounted(t *testing.T) {
	if got := object.Counted(0, "object") + ", " + object.Counted(1, "object") + ", " + object.Counted(uint64(2), "object"); got !=
		"0 objects, 1 object, 2 objects" {
		t.Error(got)
	}
	n := startNode(t)
	n.want(0, nil, "put", "--name", "x", n.file("x", []byte("x")))
	await.Until(t, "the end of the other connection", func() bool {
		return strings.Contains(n.want(0, []string{"1 object, "}, "status"), "1 connection\n")
	})
	n.want(0, []string{"1 object: "}, "scrub")
	n.want(0, []string{"1 byte ("}, "stat", "x")
}

// What has no name of its own is called what it is.
func TestNamesOfReplicas(t *testing.T) {
	for want, o := range map[string]object.Info{"-": {}, "a": {Name: "a"}, "replica of b": {Published: "b"},
		"copy of b": {Published: "b", Cached: true}} {
		if got := nameOf(o); got != want {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
}

// TestExpiryIsListed: a listing says how long an object has yet to live, and nothing of one that stays.
func TestExpiryIsListed(t *testing.T) {
	soon := time.Now().Add(time.Hour)
	for want, o := range map[string]object.Info{"ttl, ": {Class: object.TTL, Expires: &soon}, "named": {Class: object.Named}} {
		class := objectRow(o)[2]
		if !strings.HasPrefix(class, want) || strings.HasSuffix(class, " left") != (o.Expires != nil) {
			t.Errorf("%v: %q", o.Class, class)
		}
	}
	for status, want := range map[int32]string{0: "complete", -5: "error -5"} {
		if got := statusText(status); got != want {
			t.Errorf("%d: %q", status, got)
		}
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
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
		if err := errors.Join(enc.Encode(list), listJSON(&got, numbers(n, nil))); err != nil || got.String() != want.String() {
			t.Errorf("JSON of %d: %v, %.200q, want %.200q", n, err, got.String(), want.String())
		}
		got.Reset()
		want.Reset()
		err := errors.Join(table(&want, "NUMBER | LETTER | LAST", rows), listTable(&got, numbers(n, nil), "NUMBER | LETTER | LAST", row))
		if err != nil || got.String() != want.String() {
			t.Errorf("table of %d: %v, %.200q, want %.200q", n, err, got.String(), want.String())
		}
	}
}

// TestAListingThatFails says so, behind what came.
func TestAListingThatFails(t *testing.T) {
	var out strings.Builder
	gone := errors.New("gone")
	if err := listTable(&out, numbers(2, gone), "A | B", func(m map[string]string) []string { return []string{m["n"], ""} }); err != gone || strings.Count(out.String(), "\n") != 3 {
		t.Errorf("%v, %q", err, out.String())
	}
	if err := listJSON(&out, numbers(2, gone)); err != gone {
		t.Error(err)
	}
}

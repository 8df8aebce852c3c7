package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strings"
	"unicode/utf8"
)

// A listing is printed as it comes from the daemon, page by page, so that a million objects need no more memory than a thousand.

// printListing prints a listing as a table, or as a JSON array where that is asked for.
func printListing[T any](c *cli, seq iter.Seq2[T, error], head string, row func(T) []string) error {
	out := bufio.NewWriter(c.term.out)
	if c.json {
		return firstError(listJSON(out, seq), out.Flush())
	}
	return firstError(listTable(out, seq, head, row), out.Flush())
}

// listJSON writes what printJSON would of the whole.
func listJSON[T any](w io.Writer, seq iter.Seq2[T, error]) error {
	between := "[\n  "
	for item, err := range seq {
		if err != nil {
			return err
		}
		b, err := json.MarshalIndent(item, "  ", "  ")
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, between+string(b)); err != nil {
			return err
		}
		between = ",\n  "
	}
	end := "\n]\n"
	if between[0] == '[' {
		end = "[]\n"
	}
	_, err := io.WriteString(w, end)
	return err
}

// tableRows is how many rows a table's columns are measured for at a time.
const tableRows = 1000

// listTable writes what table would, but that columns may become wider after some rows.
func listTable[T any](w io.Writer, seq iter.Seq2[T, error], head string, row func(T) []string) error {
	rows := [][]string{strings.Split(head, " | ")}
	widths := make([]int, len(rows[0]))
	for item, err := range seq {
		if err != nil {
			return firstError(printRows(w, rows, widths), err)
		}
		if rows = append(rows, row(item)); len(rows) > tableRows {
			if err := printRows(w, rows, widths); err != nil {
				return err
			}
			rows = rows[:0]
		}
	}
	return printRows(w, rows, widths)
}

// printRows prints rows under each other, in columns of the widths, which grow with what is in them.
func printRows(w io.Writer, rows [][]string, widths []int) error {
	for _, r := range rows {
		for i := range r {
			r[i] = plain(r[i])
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i])+2)
		}
	}
	for _, r := range rows {
		last := len(r) - 1
		for i, cell := range r[:last] {
			fmt.Fprint(w, cell, strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)))
		}
		if _, err := fmt.Fprintln(w, r[last]); err != nil {
			return err
		}
	}
	return nil
}

// decoded gives what a listing of JSON values describes.
func decoded[T any](seq iter.Seq2[json.RawMessage, error], what string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for raw, err := range seq {
			var item T
			if err == nil {
				if err = json.Unmarshal(raw, &item); err != nil {
					err = fmt.Errorf("the daemon's list of %s: %w", what, err)
				}
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

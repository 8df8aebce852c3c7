package main

import (
	"bufio"
	"encoding/json"
	"io"
	"iter"
	"strings"
)

// A listing is printed as it comes from the daemon, page by page, so that a million objects need no more memory than a
// thousand.

// printListing prints a listing as a table, or as a JSON array where that is asked for. In place of a table without
// rows it says none, beside the output.
func printListing[T any](c *cli, seq iter.Seq2[T, error], none, head string, row func(T) []string) error {
	if c.json {
		out := bufio.NewWriter(c.term.out)
		return firstError(listJSON(out, seq), out.Flush())
	}
	rows, err := listTable(c.term.out, c.term.screen, seq, head, row)
	if rows == 0 && err == nil {
		c.say(none)
	}
	return err
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

// listTable writes what table would, but that columns may become wider after some rows, and says how many there are.
func listTable[T any](w io.Writer, s screen, seq iter.Seq2[T, error], head string, row func(T) []string) (n int,
	err error) {
	t := newTabular(w, s, head, strings.Count(head, " | ")+1)
	var rows [][]string
	for item, err := range seq {
		if err != nil {
			return n, firstError(t.print(rows), err)
		}
		n++
		if rows = append(rows, row(item)); len(rows) == tableRows {
			if err := t.print(rows); err != nil {
				return n, err
			}
			rows = rows[:0]
		}
	}
	return n, firstError(t.print(rows), t.end())
}

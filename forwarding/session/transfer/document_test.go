package transfer

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

//go:generate go test -run TestDocument -update

var update = flag.Bool("update", false, "write the tables of docs/design/transfers.md anew")

const (
	document = "../../../docs/design/transfers.md"
	begin    = "<!-- The tables below are generated: go generate ./forwarding/session/transfer -->\n"
	end      = "<!-- end of the generated tables -->\n"
)

// TestDocument: the documents have the table that Route goes by.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	tables, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the tables", document)
	}
	want := render()
	if tables == want {
		return
	}
	if !*update {
		t.Fatalf("%s is not what the code does; run: go generate ./forwarding/session/transfer", document)
	}
	if err := os.WriteFile(document, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// render writes the table, the ways and the words it uses.
func render() string {
	var b strings.Builder
	b.WriteString("| when | but not | way | because |\n|---|---|---|---|\n")
	for i := range rows {
		x := &rows[i]
		fmt.Fprintf(&b, "| %s | %s | **%s** | %s |\n", names(x.is), names(x.not), x.Way, x.Why)
	}
	b.WriteString("\nThe ways:\n\n")
	for _, way := range ways {
		item(&b, way.name, way.meaning)
	}
	b.WriteString("\nThe conditions:\n\n")
	for _, w := range words {
		item(&b, w.name, w.meaning)
	}
	item(&b, "elsewhere", "one of "+names(elsewhere&^nothing)+" or nothing: another row has it")
	return b.String()
}

// item writes one item of a list in lines of at most 120 columns.
func item(b *strings.Builder, name, meaning string) {
	line := "- **" + name + "**:"
	for word := range strings.FieldsSeq(meaning) {
		if len([]rune(line))+1+len([]rune(word)) > 120 {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}

// names lists facts.
func names(f fact) string {
	var list []string
	if f&elsewhere == elsewhere {
		f &^= elsewhere
		list = append(list, "elsewhere")
	}
	for i, w := range words {
		if f&(1<<i) != 0 {
			list = append(list, w.name)
		}
	}
	if list == nil {
		return "–"
	}
	return strings.Join(list, ", ")
}

package archtest

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readRooms reads the table of docs/design/imports.md: which of our packages a room may import, by their full paths. A
// room covers the packages below it, and may have several rows. "everything" is a program: it wires what it needs.
func readRooms(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/design/imports.md"))
	if err != nil {
		t.Fatal(err)
	}
	rooms := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\| (.*) \\|$").FindAllStringSubmatch(string(page),
		-1) {
		rooms[row[1]] = append(rooms[row[1]], strings.Split(row[2], ", ")...)
	}
	if len(rooms) < 20 {
		t.Fatalf("docs/design/imports.md has %d rows: is its table still one?", len(rooms))
	}
	for room, allowed := range rooms {
		if info, err := os.Stat(filepath.Join(root, room)); err != nil || !info.IsDir() {
			t.Errorf("docs/design/imports.md has a row for %s, which is no folder", room)
		}
		switch allowed[0] {
		case "nothing":
			rooms[room] = nil
		case "everything":
		default:
			for i, name := range allowed {
				allowed[i] = fullName(t, rooms, name)
			}
		}
	}
	return rooms
}

// fullName is the path of the package that the table calls name: a path, or the last element of one room's.
func fullName(t *testing.T, rooms map[string][]string, name string) string {
	if info, err := os.Stat(filepath.Join(root, name)); err == nil && info.IsDir() {
		return name
	}
	var found []string
	for room := range rooms {
		if path.Base(room) == name {
			found = append(found, room)
		}
	}
	if len(found) != 1 {
		t.Errorf("docs/design/imports.md says %s, which could be %v", name, found)
		return name
	}
	return found[0]
}

// roomOf returns the longest room that covers a package, without the module's name.
func roomOf(rooms map[string][]string, importPath string) string {
	p := strings.TrimPrefix(importPath, "tendril/")
	for ; p != "."; p = path.Dir(p) {
		if _, ok := rooms[p]; ok {
			return p
		}
	}
	return ""
}

func within(p, room string) bool { return p == room || strings.HasPrefix(p, room+"/") }

func TestImportsRunOneWay(t *testing.T) {
	rooms := readRooms(t)
	for _, p := range packages(t) {
		room := roomOf(rooms, p.ImportPath)
		if room == "" {
			t.Errorf("%s has no row in docs/design/imports.md", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, "tendril/") && !mayImport(rooms, room, imp) {
				t.Errorf("%s imports %s: docs/design/imports.md allows %s only %v", p.ImportPath, imp,
					room, rooms[room])
			}
		}
	}
}

func mayImport(rooms map[string][]string, room, imp string) bool {
	target, owner := strings.TrimPrefix(imp, "tendril/"), roomOf(rooms, imp)
	if owner == room || slices.Contains(rooms[room], "everything") {
		return true
	}
	return slices.ContainsFunc(rooms[room], func(a string) bool { return owner == a || target == a })
}

package archtest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxLocksHeld is how many locks one thread may hold at once.
const maxLocksHeld = 4

// heldAtOnce is every list of locks that a function and what it calls take one under another, outermost first, and
// where. Lists are joined by spaces. A list ends at one lock more than a thread may hold.
type heldAtOnce map[string]map[string]string

// chains follows calls as orders does, which has run before.
func (a *lockTable) chains() heldAtOnce {
	all := heldAtOnce{}
	callers := map[string][]string{}
	for name, f := range a.funcs {
		all[name] = map[string]string{}
		for _, s := range f.steps {
			callers[s.call] = append(callers[s.call], name)
		}
	}
	work := slices.Sorted(maps.Keys(a.funcs))
	waits := set{}
	for len(work) > 0 {
		name := work[0]
		work, waits[name] = work[1:], false
		if !a.extend(all, name) {
			continue
		}
		for _, caller := range callers[name] {
			if !waits[caller] {
				work, waits[caller] = append(work, caller), true
			}
		}
	}
	return all
}

// extend notes the lists of one function; it reports whether there are more than before.
func (a *lockTable) extend(all heldAtOnce, name string) bool {
	known := all[name]
	before := len(known)
	note := func(s lockStep, inner []string, released set) {
		list := slices.DeleteFunc(slices.Clone(s.held), func(l string) bool {
			return released[l] || slices.Contains(inner, l)
		})
		list = append(list, inner...)
		key := strings.Join(list[:min(len(list), maxLocksHeld+1)], " ")
		if _, is := known[key]; !is {
			known[key] = fmt.Sprintf("%s: %v", name, s.at)
		}
	}
	for _, s := range a.funcs[name].steps {
		if s.lock != "" {
			note(s, []string{s.lock}, nil)
			continue
		}
		for key := range all[s.call] {
			inner := strings.Split(key, " ")
			note(s, inner, a.funcs[s.call].takesInside[inner[len(inner)-1]])
		}
	}
	return len(known) > before
}

// checkDepth fails for each list of more locks than one thread may hold.
func checkDepth(t *testing.T, table *lockTable) {
	where, longest := map[string]string{}, 0
	for _, lists := range table.chains() {
		for key, at := range lists {
			n := strings.Count(key, " ") + 1
			longest = max(longest, n)
			if known, is := where[key]; n > maxLocksHeld && (!is || at < known) {
				where[key] = at
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(where)) {
		t.Errorf("one thread may hold more than %d locks:\n\t%s\n\t%s", maxLocksHeld,
			strings.ReplaceAll(key, " ", "\n\t"), where[key])
	}
	if longest < 3 {
		t.Errorf("no thread holds more than %d locks: are calls still followed?", longest)
	}
}

// TestDocumentedOrdersAreShort: no order of docs/design/locks.md is longer than what one thread may hold.
func TestDocumentedOrdersAreShort(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/design/locks.md"))
	if err != nil {
		t.Fatal(err)
	}
	orders := regexp.MustCompile("[^|;.\n]+(?: → [^|;.\n]+)+").FindAllString(
		regexp.MustCompile(`([A-Za-z])\.([A-Za-z])`).ReplaceAllString(string(page), "$1·$2"), -1)
	for _, order := range orders {
		if n := strings.Count(order, "→") + 1; n > maxLocksHeld {
			t.Errorf("an order of %d locks: %s", n, strings.TrimSpace(order))
		}
	}
	if len(orders) < 5 {
		t.Errorf("%d orders: is the page still read?", len(orders))
	}
}

package fsm

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// someNames is a state with n published objects, of a few tenants.
func someNames(r *rand.Rand, n int) *State {
	s := New()
	for range n {
		o := &Object{ID: UUID{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), 1},
			Tenant: fmt.Sprint("t", r.IntN(4)), Name: fmt.Sprintf("%x", r.IntN(4*n))}
		s.objects.put(o)
		s.names.bind(o.Tenant, o.Name, o.ID)
	}
	return s
}

// fullName is a name, and whose it is.
type fullName struct{ tenant, name string }

func compareNames(a, b fullName) int {
	return cmp.Or(strings.Compare(a.tenant, b.tenant), strings.Compare(a.name, b.name))
}

// allNames gives the names of a state in order.
func allNames(s *State) (list []fullName) {
	for tenant, of := range s.names.tenants {
		for name := range of.ids {
			list = append(list, fullName{tenant, name})
		}
	}
	slices.SortFunc(list, compareNames)
	return list
}

// Each page of names is what looking at all of them gives, whatever came and went before.
func TestPagesOfNames(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := someNames(r, 3000)
	for _, k := range allNames(s) {
		if r.IntN(3) == 0 {
			s.names.unbind(k.tenant, k.name)
		}
	}
	for range 1000 {
		s.names.unbind("t1", "none")
		at, prefix, only, n := fullName{fmt.Sprint("t", r.IntN(5)), fmt.Sprintf("%x", r.IntN(12000))}, "",
			r.IntN(2) == 0, 1+r.IntN(600)
		if r.IntN(3) == 0 {
			at = fullName{}
		}
		if r.IntN(2) == 0 {
			prefix = fmt.Sprintf("%x", r.IntN(40))
		}
		var want, got []fullName
		for _, k := range allNames(s) {
			if compareNames(k, at) > 0 && strings.HasPrefix(k.name, prefix) && (!only || k.tenant == at.tenant) {
				want = append(want, k)
			}
		}
		for _, o := range s.ObjectsAfter(at.tenant, at.name, prefix, only, n) {
			got = append(got, fullName{o.Tenant, o.Name})
		}
		if want = want[:min(n, len(want))]; !slices.Equal(got, want) {
			t.Fatalf("behind %v with %q, only %v, %d: %d names, want %d", at, prefix, only, n, len(got), len(want))
		}
	}
}

// A page of the names that there may be.
func BenchmarkPageOfNames(b *testing.B) {
	s := someNames(rand.New(rand.NewPCG(1, 2)), MaxObjects)
	for b.Loop() {
		s.ObjectsAfter("t2", "8", "", true, 100)
	}
}

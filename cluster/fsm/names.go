package fsm

import (
	"slices"
	"strings"
)

// chunkNames bounds a chunk of a nameList.
const chunkNames = 256

// nameList is names in order, in chunks of which none is empty: to add or remove one, or to find a place, costs the
// logarithm of their number and a chunk's length. The zero value is empty.
type nameList struct{ chunks [][]string }

// chunkOf finds the chunk where a name is or belongs.
func (l *nameList) chunkOf(k string) int {
	i, found := slices.BinarySearchFunc(l.chunks, k, func(c []string, k string) int { return strings.Compare(c[0], k) })
	if found {
		return i
	}
	return max(i-1, 0)
}

// add puts in a name that is not there.
func (l *nameList) add(k string) {
	if len(l.chunks) == 0 {
		l.chunks = append(l.chunks, []string{k})
		return
	}
	i := l.chunkOf(k)
	at, _ := slices.BinarySearchFunc(l.chunks[i], k, strings.Compare)
	c := slices.Insert(l.chunks[i], at, k)
	l.chunks[i] = c
	if len(c) <= chunkNames {
		return
	}
	half := len(c) / 2
	if at == len(c)-1 { // names that come in order leave full chunks behind
		half = at
	}
	l.chunks = slices.Insert(l.chunks, i+1, slices.Clone(c[half:]))
	l.chunks[i] = slices.Clone(c[:half]) // the old array has room for twice as many
}

// remove takes a name out.
func (l *nameList) remove(k string) {
	if len(l.chunks) == 0 {
		return
	}
	i := l.chunkOf(k)
	at, found := slices.BinarySearchFunc(l.chunks[i], k, strings.Compare)
	if !found {
		return
	}
	if l.chunks[i] = slices.Delete(l.chunks[i], at, at+1); len(l.chunks[i]) == 0 {
		l.chunks = slices.Delete(l.chunks, i, i+1)
	}
}

// from calls f with the names from k on, in order, until f answers false.
func (l *nameList) from(k string, f func(string) bool) {
	if len(l.chunks) == 0 {
		return
	}
	first := l.chunkOf(k)
	for i, c := range l.chunks[first:] {
		if i == 0 {
			at, _ := slices.BinarySearchFunc(c, k, strings.Compare)
			c = c[at:]
		}
		for _, k := range c {
			if !f(k) {
				return
			}
		}
	}
}

// publishedNames is the published names of all tenants, of which each has names of its own. With tenant and name as one
// key an object would take about 100 bytes more (10⁶ objects, 20 tenants). The zero value is empty.
type publishedNames struct {
	tenants map[string]*tenantNames
	ordered nameList // the keys of tenants
	count   int      // of names
}

// tenantNames is the names of one tenant, at least one.
type tenantNames struct {
	ids     map[string]UUID
	ordered nameList // the keys of ids
}

// get finds the object that a tenant has under a name.
func (p *publishedNames) get(tenant, name string) (id UUID, ok bool) {
	if t := p.tenants[tenant]; t != nil {
		id, ok = t.ids[name]
	}
	return id, ok
}

// bind gives an object its name, which no other has, or takes that of another one.
func (p *publishedNames) bind(tenant, name string, id UUID) {
	t := p.tenants[tenant]
	if t == nil {
		if p.tenants == nil {
			p.tenants = map[string]*tenantNames{}
		}
		t = &tenantNames{ids: map[string]UUID{}}
		p.tenants[tenant] = t
		p.ordered.add(tenant)
	}
	if _, there := t.ids[name]; !there {
		t.ordered.add(name)
		p.count++
	}
	t.ids[name] = id
}

// unbind takes a name away, where it is there.
func (p *publishedNames) unbind(tenant, name string) {
	if _, there := p.get(tenant, name); !there {
		return
	}
	t := p.tenants[tenant]
	delete(t.ids, name)
	t.ordered.remove(name)
	p.count--
	if len(t.ids) == 0 {
		delete(p.tenants, tenant)
		p.ordered.remove(tenant)
	}
}

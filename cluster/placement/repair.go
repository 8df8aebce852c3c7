package placement

import "slices"

// Count is how many replicas an object has and is to have.
type Count struct {
	Wanted  int
	Have    []ID // nodes that have one, the oldest first
	Gone    []ID // of them, those that have not answered for so long that they no longer count
	Silent  []ID // of them, those that do not answer now, but still count
	Pending []ID // nodes that were asked for one
}

// Missing gives how many replicas are still to be asked for. A node that does not answer for a moment counts.
func (c Count) Missing() int {
	return max(0, c.Wanted-c.good(c.Gone)-len(c.Pending))
}

// Surplus gives the replica to be given up, the newest one; false: none is. Those that stay all answer now, and are as
// many as are wanted.
func (c Count) Surplus() (ID, bool) {
	if c.Wanted < 1 || len(c.Pending) > 0 || c.good(append(slices.Clone(c.Gone), c.Silent...)) <= c.Wanted {
		return ID{}, false
	}
	for _, id := range slices.Backward(c.Have) {
		if !slices.Contains(c.Gone, id) && !slices.Contains(c.Silent, id) {
			return id, true
		}
	}
	return ID{}, false
}

// good counts replicas that are not on some nodes.
func (c Count) good(without []ID) (n int) {
	for _, id := range c.Have {
		if !slices.Contains(without, id) {
			n++
		}
	}
	return n
}

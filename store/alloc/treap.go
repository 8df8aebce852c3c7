package alloc

// firstAtLeast finds the lowest range of at least n bytes.
func (r *Ranges) firstAtLeast(at nodeIndex, n uint64) nodeIndex {
	for at != 0 && r.nodes[at].longest >= n {
		x := &r.nodes[at]
		switch {
		case r.nodes[x.left].longest >= n:
			at = x.left
		case x.len >= n:
			return at
		default:
			at = x.right
		}
	}
	return 0
}

// firstAligned finds the lowest range that holds n bytes at a multiple of align.
func (r *Ranges) firstAligned(at nodeIndex, n, align uint64) nodeIndex {
	if at == 0 || r.nodes[at].longest < n {
		return 0
	}
	x := r.nodes[at]
	if found := r.firstAligned(x.left, n, align); found != 0 {
		return found
	}
	if alignUp(x.off, align)+n <= x.off+x.len {
		return at
	}
	return r.firstAligned(x.right, n, align)
}

// endingAt finds the free range whose end is off.
func (r *Ranges) endingAt(off uint64) nodeIndex {
	at := r.root
	for at != 0 {
		x := &r.nodes[at]
		switch {
		case x.off+x.len == off:
			return at
		case x.off < off:
			at = x.right
		default:
			at = x.left
		}
	}
	return 0
}

// startingAt finds the free range whose start is off.
func (r *Ranges) startingAt(off uint64) nodeIndex {
	at := r.root
	for at != 0 && r.nodes[at].off != off {
		if r.nodes[at].off < off {
			at = r.nodes[at].right
		} else {
			at = r.nodes[at].left
		}
	}
	return at
}

// anyFree says whether some of [off, off+n) is free.
func (r *Ranges) anyFree(off, n uint64) bool {
	at := r.root
	for at != 0 {
		x := &r.nodes[at]
		switch {
		case x.off >= off+n:
			at = x.left
		case x.off+x.len <= off:
			at = x.right
		default:
			return true
		}
	}
	return false
}

func (r *Ranges) insertFree(off, n uint64) {
	at := r.newNode(off, n)
	low, high := r.split(r.root, off)
	r.root = r.merge(r.merge(low, at), high)
}

func (r *Ranges) removeFree(off uint64) {
	low, rest := r.split(r.root, off)
	at, high := r.split(rest, off+Granule)
	r.root = r.merge(low, high)
	r.nodes[at] = node{left: r.spare}
	r.spare = at
}

// resize moves a free range's ends, past no other free range.
func (r *Ranges) resize(at nodeIndex, off, n uint64) {
	r.nodes[at].off, r.nodes[at].len = off, n
	r.refreshDownTo(r.root, off)
}

// refreshDownTo refreshes the way from a subtree's root to the range that starts at off.
func (r *Ranges) refreshDownTo(at nodeIndex, off uint64) {
	x := &r.nodes[at]
	switch {
	case off < x.off:
		r.refreshDownTo(x.left, off)
	case off > x.off:
		r.refreshDownTo(x.right, off)
	}
	r.refresh(at)
}

// split divides a subtree into the ranges that start below off and the others.
func (r *Ranges) split(at nodeIndex, off uint64) (low, high nodeIndex) {
	if at == 0 {
		return 0, 0
	}
	if r.nodes[at].off < off {
		middle, high := r.split(r.nodes[at].right, off)
		r.nodes[at].right = middle
		r.refresh(at)
		return at, high
	}
	low, middle := r.split(r.nodes[at].left, off)
	r.nodes[at].left = middle
	r.refresh(at)
	return low, at
}

// merge joins two subtrees, all of low standing below all of high.
func (r *Ranges) merge(low, high nodeIndex) nodeIndex {
	switch {
	case low == 0:
		return high
	case high == 0:
		return low
	case r.nodes[low].priority > r.nodes[high].priority:
		right := r.merge(r.nodes[low].right, high)
		r.nodes[low].right = right
		r.refresh(low)
		return low
	default:
		left := r.merge(low, r.nodes[high].left)
		r.nodes[high].left = left
		r.refresh(high)
		return high
	}
}

func (r *Ranges) refresh(at nodeIndex) {
	x := &r.nodes[at]
	x.longest = max(x.len, r.nodes[x.left].longest, r.nodes[x.right].longest)
}

func (r *Ranges) newNode(off, n uint64) nodeIndex {
	at := r.spare
	if at != 0 {
		r.spare = r.nodes[at].left
	} else {
		at = nodeIndex(len(r.nodes))
		r.nodes = append(r.nodes, node{})
	}
	r.seed ^= r.seed << 13 // xorshift32: priorities need spread, not secrecy
	r.seed ^= r.seed >> 17
	r.seed ^= r.seed << 5
	r.nodes[at] = node{off: off, len: n, longest: n, priority: r.seed}
	return at
}

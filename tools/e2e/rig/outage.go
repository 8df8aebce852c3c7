package rig

import "time"

// outage is what a Proxy does to connections that are there, from a moment on. Guarded by Proxy.mu.
type outage struct {
	pairs map[*pair]struct{}
	plug  chan struct{} // closed when the cable is in again; nil: it is
	ended chan struct{} // closed by Close
	armed func()        // nil: nothing is
	way   Way
	left  int64 // bytes until then

	passed int64 // bytes, both ways
}

// pair is a connection through the proxy.
type pair struct{ swallowed [2]bool }

// Arm has action called once, when so many more bytes have come by on data connections in a way; these are held back
// meanwhile.
func (p *Proxy) Arm(way Way, after int64, action func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outage.armed, p.outage.way, p.outage.left = action, way, after
}

// Pull holds all back, of new connections, too, until Plug. Nothing is lost.
func (p *Proxy) Pull() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outage.plug == nil && !p.closed {
		p.outage.plug = make(chan struct{})
	}
}

// Plug ends Pull.
func (p *Proxy) Plug() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outage.plug != nil {
		close(p.outage.plug)
		p.outage.plug = nil
	}
}

// Swallow takes everything that comes by on the connections of now in these ways, with an acknowledgement, and passes
// nothing of it on, not even their ends. Connections that come later are as they should be.
func (p *Proxy) Swallow(ways ...Way) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for x := range p.outage.pairs {
		for _, way := range ways {
			x.swallowed[way] = true
		}
	}
}

// enter books a connection; nil where the proxy is closed.
func (p *Proxy) enter() *pair {
	p.awaitPlug()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	x := &pair{}
	p.outage.pairs[x] = struct{}{}
	return x
}

func (p *Proxy) leave(x *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.outage.pairs, x)
}

// awaitPlug waits while the cable is out.
func (p *Proxy) awaitPlug() {
	p.mu.Lock()
	plug, ended := p.outage.plug, p.outage.ended
	p.mu.Unlock()
	if plug == nil {
		return
	}
	select {
	case <-plug:
	case <-ended:
	}
}

// Passed is how many bytes have come by so far, both ways.
func (p *Proxy) Passed() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outage.passed
}

// passing is asked before n bytes go on, and reports whether they do.
func (p *Proxy) passing(x *pair, lane Lane, way Way, n int) bool {
	p.mu.Lock()
	p.outage.passed += int64(n)
	var action func()
	if p.outage.armed != nil && lane == Data && way == p.outage.way && n > 0 {
		if p.outage.left -= int64(n); p.outage.left < 0 {
			action, p.outage.armed = p.outage.armed, nil
		}
	}
	p.mu.Unlock()
	if action != nil {
		action()
	}
	p.awaitPlug()
	p.mu.Lock()
	defer p.mu.Unlock()
	return !x.swallowed[way]
}

// AfterArm is Arm for what takes a while to begin behind the bytes that ask for it: action is called that much later,
// and holds nothing back.
func (p *Proxy) AfterArm(way Way, after int64, later time.Duration, action func()) {
	p.Arm(way, after, func() { time.AfterFunc(later, action) })
}

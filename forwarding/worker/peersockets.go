//go:build cgo

package worker

import (
	"os"
	"sync"

	"tendril/forwarding/clwire"
	"tendril/forwarding/worker/peer"
)

// maxPeerSockets bounds the sockets that wait for the record that tells of their link.
const maxPeerSockets = 64

// peerSockets is where the daemon's side of the process leaves sockets of links: their record may come later.
type peerSockets struct {
	mu      sync.Mutex
	waiting []peerSocket
	links   map[uint64]*peer.Link
}

type peerSocket struct {
	to   clwire.WorkerPeer
	file *os.File
}

// put takes a socket over.
func (p *peerSockets) put(to *clwire.WorkerPeer, f *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.links[to.Link]; l != nil {
		l.Take(to.Index, f)
		return
	}
	if len(p.waiting) >= maxPeerSockets { // of links that were given up: the oldest goes
		p.waiting[0].file.Close()
		p.waiting = append(p.waiting[:0], p.waiting[1:]...)
	}
	p.waiting = append(p.waiting, peerSocket{*to, f})
}

// claim gives a link its sockets, those that wait and all that come.
func (p *peerSockets) claim(id uint64, l *peer.Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links == nil {
		p.links = map[uint64]*peer.Link{}
	}
	p.links[id] = l
	kept := p.waiting[:0]
	for _, w := range p.waiting {
		if w.to.Link == id {
			l.Take(w.to.Index, w.file)
		} else {
			kept = append(kept, w)
		}
	}
	clear(p.waiting[len(kept):])
	p.waiting = kept
}

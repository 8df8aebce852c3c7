//go:build cgo

package worker

import (
	"os"
	"slices"
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
	l := p.links[to.Link]
	if l == nil {
		p.keepLocked(to, f)
	}
	p.mu.Unlock()
	if l != nil {
		l.Take(to.Index, f)
	}
}

// keepLocked keeps a socket whose link is not known yet.
func (p *peerSockets) keepLocked(to *clwire.WorkerPeer, f *os.File) {
	if len(p.waiting) >= maxPeerSockets { // of links that were given up: the oldest goes
		p.waiting[0].file.Close()
		p.waiting = append(p.waiting[:0], p.waiting[1:]...)
	}
	p.waiting = append(p.waiting, peerSocket{*to, f})
}

// claim gives a link its sockets, those that wait and all that come.
func (p *peerSockets) claim(id uint64, l *peer.Link) {
	for _, w := range p.announce(id, l) {
		l.Take(w.to.Index, w.file)
	}
}

// announce has the link's coming sockets go to it, and returns those that wait.
func (p *peerSockets) announce(id uint64, l *peer.Link) (came []peerSocket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links == nil {
		p.links = map[uint64]*peer.Link{}
	}
	p.links[id] = l
	p.waiting = slices.DeleteFunc(p.waiting, func(w peerSocket) bool {
		if w.to.Link != id {
			return false
		}
		came = append(came, w)
		return true
	})
	return came
}

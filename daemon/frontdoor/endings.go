package frontdoor

import (
	"crypto/subtle"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// endings remembers why sessions ended that their clients could have come back to. What a client is told at that moment
// goes with its connection, which may break just then; whoever comes back asks for the session, and is told the reason.
// Only who could have resumed the session is told: for everybody else there never was one.
//
// Its mutex is a leaf.
type endings struct {
	mu   sync.Mutex
	list []*ending // the oldest first; guarded by mu
}

// ending is immutable.
type ending struct {
	session uint64
	peer    Peer // without its certificate
	keeping keeping
	why     string
	until   time.Time
}

const (
	// endingTime is for how long the reason is remembered. A client that comes back at all does so within its
	// --on-loss, a minute unless it was told otherwise.
	endingTime = 10 * time.Minute
	// maxEndings bounds the reasons. Beyond it the oldest goes of the tenant that has most: the sessions of one tenant
	// that end at once are all told, and push out nobody else's.
	maxEndings     = 1024
	maxEndingBytes = 512 // of a reason
)

// keeping is what a connection knows of its session's resumption. Guarded by connection.stateMu.
type keeping struct {
	secret [32]byte
	time   time.Duration // 0: the session ends with the connection
	pulse  time.Duration // how often the client wants to hear that a request is worked on; 0: not
	left   bool          // the client has taken leave
}

// mayResume says whether a peer with this request is the session's.
func (k *keeping) mayResume(of, who Peer, secret *[32]byte) bool {
	return k.time > 0 && subtle.ConstantTimeCompare(k.secret[:], secret[:]) == 1 &&
		of.Tenant == who.Tenant && of.Subject == who.Subject && of.Role == who.Role
}

// errNotKept tells no stranger which sessions there are.
var errNotKept = fmt.Errorf("%w: no session waits for this client: its time has run out, or the secret or the certificate is wrong", object.ErrPermission)

// note remembers why a session ends; nil: nothing is. k is what its client has to come back with.
func (e *endings) note(session uint64, p Peer, k keeping, why error) {
	if why == nil || k.time == 0 || k.left {
		return
	}
	text, now := why.Error(), time.Now()
	text = strings.ToValidUTF8(strings.Clone(text[:min(len(text), maxEndingBytes)]), "")
	p.Leaf = nil // some kilobytes
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = slices.DeleteFunc(e.list, func(x *ending) bool { return x.session == session || now.After(x.until) })
	if len(e.list) >= maxEndings {
		at := e.oldestOfMost()
		e.list = slices.Delete(e.list, at, at+1)
	}
	e.list = append(e.list, &ending{session, p, k, text, now.Add(endingTime)})
}

// oldestOfMost finds the oldest reason of the tenant that has most; of those that have as many, the one whose oldest is
// older. mu is held, and there is one.
func (e *endings) oldestOfMost() (at int) {
	has, most := map[string]int{}, 0
	for _, x := range e.list {
		has[x.peer.Tenant]++
		most = max(most, has[x.peer.Tenant])
	}
	return slices.IndexFunc(e.list, func(x *ending) bool { return has[x.peer.Tenant] == most })
}

// why says why the session ended that a peer wants to come back to, as a case of kind; errNotKept: that is not known,
// or not for this peer.
func (e *endings) why(m *wire.ResumeSessionRequest, who Peer, kind *object.Sentinel) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.list {
		if x.session == m.Session && x.keeping.mayResume(x.peer, who, &m.Secret) && time.Now().Before(x.until) {
			return fmt.Errorf("%w: %s", kind, x.why)
		}
	}
	return errNotKept
}

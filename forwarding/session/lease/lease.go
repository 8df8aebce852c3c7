// Package lease asks a daemon for devices that one program has for itself, and waits in line for them.
package lease

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// leasePoll is how often a program that waits for a lease asks again, where the daemon does not keep the question until
// there is something new. Its place in the line is kept far longer.
const leasePoll = 500 * time.Millisecond

// Parse reads what TENDRIL_LEASE takes: a number of devices, "all", "node" for all of one node, or "token:" and
// the token of a lease that is there. "": nil, no lease.
func Parse(text string) (*clwire.LeaseOptions, error) {
	token, named := strings.CutPrefix(text, "token:")
	n, err := strconv.ParseUint(text, 10, 12)
	switch {
	case text == "":
		return nil, nil
	case text == "all":
		return &clwire.LeaseOptions{}, nil
	case text == "node":
		return &clwire.LeaseOptions{Whole: true}, nil
	case named && token != "" && len(token) <= clwire.MaxLeaseText:
		return &clwire.LeaseOptions{Token: token}, nil
	case err == nil && n > 0:
		return &clwire.LeaseOptions{Count: int(n)}, nil
	}
	return nil, fmt.Errorf("%q: want a number of devices from 1 on, all, node, or token: and a lease's token", text)
}

// Open asks for a session by open until its lease is granted, at most as long as patience; 0: once. say is told,
// once, what it waits for. o.Lease may be nil.
func Open(open func(options []byte) (snapshot []byte, err error), o clwire.SessionOptions,
	patience time.Duration, say func(line string)) (*clwire.Snapshot, error) {
	if o.Lease != nil && o.Lease.Token == "" && patience > 0 {
		var ticket [16]byte
		_, _ = rand.Read(ticket[:]) // it does not fail: crypto/rand
		own := *o.Lease
		own.Ticket = hex.EncodeToString(ticket[:])
		o.Lease = &own
	}
	options, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	for until, said := time.Now().Add(patience), false; ; {
		began := time.Now()
		raw, err := open(options)
		switch {
		case err == nil:
			return leasedSnapshot(raw, o.Lease != nil)
		case o.Lease == nil || o.Lease.Ticket == "" || !errors.Is(err, object.ErrBusy):
			return nil, err
		case !time.Now().Before(until):
			leave(open, o)
			return nil, err
		case !said:
			said = true
			say(fmt.Sprintf("tendril: waiting for a lease: %v", err))
		}
		time.Sleep(leasePoll - time.Since(began))
	}
}

// leave gives up the place in the line. A daemon that does not know how takes it for one more question; what that
// grants is not used, and ends with the connection.
func leave(open func(options []byte) (snapshot []byte, err error), o clwire.SessionOptions) {
	own := *o.Lease
	own.Leave = true
	o.Lease = &own
	if options, err := json.Marshal(o); err == nil {
		_, _ = open(options)
	}
}

func leasedSnapshot(raw []byte, asked bool) (*clwire.Snapshot, error) {
	var s clwire.Snapshot
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("the daemon's list of devices: %w", err)
	}
	if asked && s.Lease == nil {
		return nil, fmt.Errorf("%w: the daemon is older than its client and knows no leases: restart it",
			object.ErrUnsupported)
	}
	return &s, nil
}

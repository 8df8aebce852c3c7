// Package fsm is the cluster's replicated state machine: pure data and a pure Apply.
//
// State holds what must survive and be the same on every node: nodes, devices, tenants, tokens (hashes of their
// secrets), certificates, published objects with their names and replicas, policy, leases over nodes. A Command changes
// it. Apply reads no clock, draws no random number and lets no map's order show: the time comes in the command, stamped
// by the leader. The same commands in the same order give the same state and the same results, byte for byte.
//
// Each record carries an epoch that rises with each change; a command that was made of an older epoch is refused with
// ErrBusy, and one from an incarnation of a node that runs no more with ErrPermission.
//
// Trust: bytes of commands and snapshots are checked as if a stranger had sent them (Decode, Restore); whether the
// proposer may do what it asks is the front door's to decide, before it proposes.
//
// Locks: none. A State is not safe for concurrent use; cluster/raftnode keeps one under its own lock.
package fsm

import (
	"fmt"
	"strings"

	"tendril/store/object"
)

// Result is what a command came to. It is part of the replicated state: a repeated request gets the first one's.
type Result struct {
	Code  object.Code // 0 = done
	Text  string      // why not, and what to do
	Epoch uint64      // the record's new epoch, where it has one
}

// Err gives the result as an error that errors.Is finds the sentinel of; nil when the command was done.
func (r Result) Err() error { return object.FromCode(r.Code, r.Text) }

func (r *Result) walk(c *codec) {
	c.u16((*uint16)(&r.Code))
	c.str(&r.Text, MaxResultTextSize)
	c.u64(&r.Epoch)
}

func done(epoch uint64) Result { return Result{Epoch: epoch} }

func refuse(why *object.Sentinel, format string, args ...any) Result {
	text := why.Error() + ": " + fmt.Sprintf(format, args...)
	if len(text) > MaxResultTextSize {
		text = strings.ToValidUTF8(text[:MaxResultTextSize], "")
	}
	return Result{Code: why.Code(), Text: text}
}

// request is one remembered request.
type request struct {
	id     UUID
	sum    uint32
	result Result
}

func (r *request) walk(c *codec) {
	r.id.walk(c)
	c.u32(&r.sum)
	r.result.walk(c)
}

// State is the metadata of the cluster. Use New; not safe for concurrent use.
type State struct {
	now          int64 // Unix ns: the latest time that a command brought; never goes back
	nodes        map[UUID]*Node
	devices      map[DeviceKey]*Device
	tenants      map[string]*Tenant
	tokens       map[UUID]*Token
	certificates map[UUID]*Certificate
	objects      objectTable
	policies     map[string]*Policy
	leases       map[UUID]*Lease

	names    publishedNames    // derived from objects
	wanted   map[UUID]struct{} // objects with Object.Wanted > 1; derived
	usage    map[string]Usage  // of objects, by tenant; derived
	deleted  int               // objects with Object.Deleted; derived
	requests map[UUID]*request // the last MaxRequests, also in order
	order    []*request        // oldest first

	nodeChanges uint64 // since this State was made: see NodeChanges
	revocations uint64 // since this State was made: see Revocations
	losses      uint64 // since this State was made: see Losses

	leaseChanges uint64 // since this State was made: see LeaseChanges
	leaseEnds    uint64 // of them: see LeaseEnds

	tenantChanges uint64 // since this State was made: see TenantChanges
	nameChanges   nameChanges
}

// New makes the empty state.
func New() *State {
	return &State{
		nodes: map[UUID]*Node{}, devices: map[DeviceKey]*Device{}, tenants: map[string]*Tenant{},
		tokens:       map[UUID]*Token{},
		certificates: map[UUID]*Certificate{}, policies: map[string]*Policy{},
		wanted: map[UUID]struct{}{}, usage: map[string]Usage{},
		requests: map[UUID]*request{}, leases: map[UUID]*Lease{},
	}
}

// Apply decodes a command and does it. The error is Decode's and leaves the state as it was: the caller must then stop,
// not go on, for other nodes may have been able to do what this one was not. A command that is refused is no error: see
// Result.
func (s *State) Apply(raw []byte) (Result, error) {
	e, err := Decode(raw)
	if err != nil {
		return Result{}, err
	}
	if known, ok := s.requests[e.Request]; ok {
		if known.sum != e.sum {
			return refuse(object.ErrInvalid, "request id %s was used for another command: take a fresh one",
				e.Request), nil
		}
		return known.result, nil
	}
	s.now = max(s.now, e.Time)
	result := e.Command.apply(s, s.now)
	if !e.Request.IsZero() {
		s.remember(&request{id: e.Request, sum: e.sum, result: result})
	}
	return result, nil
}

// remember keeps a request's result, and forgets the oldest one beyond MaxRequests.
func (s *State) remember(r *request) {
	s.requests[r.id] = r
	s.order = append(s.order, r)
	if len(s.order) > MaxRequests {
		delete(s.requests, s.order[0].id)
		s.order[0] = nil
		s.order = s.order[1:]
	}
}

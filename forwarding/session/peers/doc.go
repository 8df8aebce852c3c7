// Package peers makes the links between two workers of one session, on one node or two: bytes and ends of events go
// from worker to worker, and the session hears that they arrived.
//
// A link is made when something first has to go between two workers. Where it does not come up, or ends, its caller
// carries what goes between them through this process, and the nodes' status says why. It is made anew behind a pause,
// when something has to go between the two again.
//
//	table.go  the links by pair of workers: who waits for the first attempt, and when the next may be
//	link.go   one attempt: the workers learn each other's certificates, the nodes bring them together
//
// What is known of a worker goes when it has died (Forget). A try that nobody waits for has a goroutine, which Close
// joins.
//
// Trust: a worker runs the tenant's kernels; what it says of a link that is not its own ends it. Locks: pair.first (a
// sync.Once) > pair.mu > Link.mu; Table.mu and Link.mu are leaves, taken under the connection's reader's lock too. Only
// pair.first is held while anything waits.
package peers

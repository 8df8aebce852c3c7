// Package conn is the client's end of the connection to one worker process: the link and its reader, requests and
// replies, the lanes from and to another machine, the return of connections that were lost, and the end.
//
// It knows the numbers of objects and no objects. What the worker says of them goes to a Sink, which package session
// implements.
//
//	conn.go      sends records; die fails everything outstanding and tells the Sink, once
//	open.go      starts a worker on this node or on another machine and greets it
//	reader.go    whoever waits takes records off the link; dispatch.go handles each
//	call.go      requests and replies, gates, blobs
//	segment.go   shared memory that the worker knows; grant.go: device memory that the daemon allowed
//	lanes.go     the lanes to another machine; bulk.go: one operation; sender.go: chunks, and how many may go ahead
//	resume.go    connections that come back
//	trace.go     the connection's records of a trace
//
// Trust: the worker runs the tenant's kernels and may be broken. clwire and link check what it says, and this package
// or the Sink looks up every number; a fault ends the worker. An answer is bounded (maxReplyBytes).
//
// Locks: reader.rx is held while a record is dispatched and the Sink is called. Under it only leaves are taken:
// Conn.mu, bulk.mu, the Sink's. Conn.segMu comes before the link's own locks. grant.mu is held while the daemon is
// asked. BulkOp.memory stands apart: senders and lane readers hold it for reading while they touch the program's
// memory, and take only a lane's own lock under it. giveUp takes it for writing, under reader.rx or no lock, and so
// waits for one chunk at most, on a lane that is being read or shut down.
package conn

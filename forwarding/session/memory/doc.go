// Package memory is a session's shared memory: segments of the daemon of this node.
//
//	slabs.go    Slabs: where buffers in place lie, each in a segment of its own or in a slab that many share; memory
//	            that is given back while commands use it comes free when their queues have passed their Marks
//	staging.go  Staging: what bytes pass through on their way to and from memory of a driver's own
//	views.go    Views: where the program sees shared memory that a device's driver has pinned
//
// Slabs know queues as Queue and the daemon as Source, and no other object of the session.
//
// Trust: the daemon is trusted with memory.
//
// Locks: Slabs.mu and Views.mu are leaves; Source is called without them. Staging.Open holds the pool's sync.Once while
// it calls prepare, which takes Buffer.mu and Queue.mu of the session.
package memory

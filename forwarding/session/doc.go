// Package session is the client half of forwarding: OpenCL as a program sees it, in pure Go.
//
// It keeps a shadow of every object, answers queries from the snapshot taken at connect, checks arguments with the
// codes of the specification, and sends commands to the worker of a context one-way. package icd turns C calls into
// calls of Driver; handles are numbers (package handle).
//
// Trust: the program may pass anything as a handle or a size and is answered with an error; pointers to its own memory
// are followed, as in every OpenCL driver. The worker runs the tenant's kernels and may be broken: what it sends is
// checked by clwire and link, and looked up in tables; a fault ends that worker. The daemon is trusted with memory.
//
// Lock order, outermost first; a lock may be taken while any before it is held:
//
//	Driver.mu > CommandBuffer.mu > Context.mu > Program.mu > Kernel.mu > mirror.mu > Buffer.mu > unwaited.mu > Queue.mu > worker.segMu > link's own
//
// Context.publishing comes before them all. A blocking command holds it for reading while it waits, so who wants it for writing tries
// (Context.beginPublishing) and never waits for it: enqueue calls would wait behind him.
//
// The reader's lock (worker.rx) is held while records are dispatched; under it only leaves are taken: worker.mu,
// Event.mu, slabs.mu, dispatcher.mu, bulk.mu. bulkOp.memory stands apart: senders and lane readers hold it for reading
// while they touch the program's memory, with a lane's own lock alone after it; bulkOp.giveUp takes it for writing, under
// the reader's lock or none, and so waits for one chunk at most, on a lane that is being read or shut down. No lock is
// held while a callback of the program runs or while a thread waits.
package session

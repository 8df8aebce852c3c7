// Package worker executes one session on one native platform, in a process of
// its own: it takes the records of forwarding/clwire from a link, keeps the
// session's objects, hands commands through the engine to the driver, and
// reports what became of them. It also probes a driver for its platforms.
//
// Trust: the driver and the tenant's kernels run in this process, inside the
// sandbox, so nothing else must trust it. The client is not believed either:
// every id, size and offset is checked against the worker's tables; a record
// that breaks the protocol ends the session with a Fault that says why, while
// what OpenCL calls an error goes to the command's event or reply.
//
// Goroutines: the reader (session.run, on a locked thread) owns the object
// tables; one goroutine a build, a query or a slow release; the engine's; one
// that drains what kernels print; one that watches the control socket. The
// process ends with its session, without waiting for the driver.
//
// Locks, outermost first: engine.Engine.mu, kernel.mu, segment.mu, link.
package worker

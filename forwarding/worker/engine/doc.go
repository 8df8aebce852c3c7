// Package engine schedules the commands of one session: which are handed to
// the driver now, which are held back, how each ends, and who is told.
//
// A command is submitted natively at once when every event it waits for is
// natively submitted or done; the native wait list orders the rest. It is held
// while one of them is a user event, a host operation or an event of a held
// command, and on an in-order queue everything behind it is held too. So the
// driver never waits for something that only a later message can bring, and a
// gated command can never block the message that frees it.
//
// A command whose dependency failed never runs and fails with −14
// (CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST), and so do its dependents
// (OpenCL 3.0 §5.11).
//
// Goroutines: the caller's (the reader of the control stream); while it sleeps
// with commands under way (Park) one waiter for each queue that somebody waits
// for and one pacer for everything else; with Options.Submitters one submitter a queue,
// which submits. Close joins them.
//
// Locks: Engine.mu guards everything here. It is held while Sink is called and,
// without Submitters, while a Task is submitted; both must not call the engine back.
// Task and driver locks come after it. The package uses no driver, trusts its
// caller's native handles, and checks every id.
package engine

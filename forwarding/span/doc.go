// Package span makes one OpenCL platform, and contexts, of the devices of several platforms and nodes.
//
// It stands between the C calls (package icd) and package session, which knows one worker a context. A context whose
// devices belong to one native platform is session's own, and passes through here untouched. Any other is a Context of
// this package: a context of session's for each platform among its devices (a member), and objects that stand for one
// object a member, made when a member first uses them. What is this package's own:
//
//   - where a buffer's bytes are (parts): each byte range knows which members hold its newest contents and which
//     command wrote it. A command that reads a range which its member does not hold waits for a move of that range;
//   - events across members (bridges): a user event at the waiting member that ends as the event does, status included;
//   - the program's own memory (CL_MEM_USE_HOST_PTR), as session's mirrors keep it, but over all members.
//
// Moves and bridges go from worker to worker where a link between the two is up, and through this process where none
// is.
//
// Trust: as in package session, on which every check rests that is not about members.
//
// Lock order: Context.mu > Event.mu > session's own. Context.mu is held while commands are planned and sent, so that
// what is noted of a range is in the order of the commands; nothing is waited for under it but the first launch's
// verdict and moves of the program's own memory, neither of which needs another call of the program's. Callbacks of
// session's take move.mu and Event.mu alone.
package span

// Package session is the client half of forwarding: OpenCL as a program sees it, in pure Go.
//
// It keeps a shadow of every object, answers queries from the snapshot taken at connect, checks arguments with the
// codes of the specification, and sends commands to the worker of a context one-way. package icd turns C calls into
// calls of Driver; handles are numbers (package handle).
//
// Trust: the program may pass anything as a handle or a size and is answered with an error; pointers to its own
// memory are followed, as in every OpenCL driver. The worker runs the tenant's kernels and may be broken: what it
// sends is checked by conn and looked up in tables (worker.go); a fault ends that worker. The daemon is trusted with
// memory.
//
// What needs no object of OpenCL has packages of its own below this one: devices (which are shown), callback (the
// program's), node (the daemon), memory (shared memory), peers (links between workers), transfer (which way bytes go),
// ways (how they go it), geometry (how images lie), mapped (what the maps of a buffer show), includes (files of a
// source), builds (what a program's builds came to), kernelfacts (what is known of a kernel by its name), kernelargs
// (its arguments, and which have yet to travel), graphs (what command buffers have recorded), mirror (a buffer and the
// program's memory under it).
//
// Lock order, outermost first. A lock may be taken while one of an earlier line is held, and no two of one line are
// held together:
//
//	graphs.Graph.mu (a command buffer), and Context.publishing after it
//	Kernel.mu
//	Mirror.mu (package mirror), Staging's once, AsyncWrites.mu (package ways)
//	Buffer.mu, Queue.mu, Context.mu, Program.mu, Sampler.mu > the connection's own (package conn)
//
// No thread holds more than four of them: a command that is recorded takes Kernel.mu and no mirror's, one that is
// replayed no Kernel.mu (the copies in a command buffer are its own), and memory that is published in place is never
// staged. Buffer.mu is let go before memory is freed, which may ask a queue for its progress.
//
// A worker is started under Context.mu > Platform.mu, by who holds nothing else; the others use one that runs
// (debitRunning). Driver.mu is held while the daemons are connected to, and nothing else then. A sub-buffer's mu comes
// before its root's.
//
// Context.publishing is held for reading by each command in place, while it waits too. So who wants it for writing
// tries (Context.beginPublishing) and never waits for it: enqueue calls would wait behind him.
//
// A worker is called by its connection (conn.Sink, conn.BulkOwner) with the reader's lock held; under it only leaves
// are taken: worker.mu, Event.mu, mapped.Maps.mu, transfer.ReadHazards.mu, stagedRead.mu (package ways),
// memory.Slabs.mu, callback.Dispatcher.mu. No lock is held while a callback of the program runs, nor, but publishing,
// while a thread waits for a command of the program's.
package session

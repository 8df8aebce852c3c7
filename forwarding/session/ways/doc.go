// Package ways carries transfers out: reads, writes and maps, each by the way that package transfer chooses.
//
//	objects.go     what the ways need of a queue, an event, a buffer and a worker
//	context.go     what the transfers of a session share, and those of a context
//	transfer.go    one transfer, and the program's side of it
//	command.go     gathers the request, and takes the way
//	hostwork.go    copy now, copy in turn, copy later: work of this side's own
//	bulk.go        stream, lanes: the bytes travel by themselves
//	asyncwrite.go  inline async: which writes were not waited for
//	stagedread.go, stagedwrite.go, chunkread.go, direct.go  transfers that the device carries out, with shared memory
//	move.go        chunks: moves of this side's own
//
// It knows no object of OpenCL: package session implements the interfaces, and fakes do in the tests.
//
// Trust: the program's memory is followed as the program gave it; its sizes were checked by the caller. What a worker
// says comes through package conn, which checks it.
//
// Locks: AsyncWrites.mu comes before the queue's own and the connection's. stagedRead.mu is held while the program's
// memory is written, also under the reader's lock; only leaves are taken under it (package memory, transfer).
package ways

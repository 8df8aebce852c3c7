// Package link carries records between a client and a worker on one node: two
// rings in one shared memfd, and a unix stream socket beside them for bells and
// descriptors.
//
// Trust: the other side shares the memory and may be broken or hostile (a stray
// kernel writes anywhere in its worker). Every length and position is read
// once, checked, and the copy used; a fault ends the link with an error and
// never reaches outside the ring. Payloads handed out alias the ring: what the
// peer changes after the check is data, never a length.
//
// Locks: Conn.tx serialises senders and is a leaf. Receiving (Next, Arm,
// Block, TakeFD) belongs to one goroutine at a time; the owner sees to that.
// Close may be called from anywhere, once receiving has stopped.
package link

// Package link carries records between a client and a worker. On one node (Conn): two
// rings in one shared memfd, and a unix stream socket beside them for bells and
// descriptors.
//
// Across a network (Stream): TLS 1.3 over TCP, or over what ssh carries, between
// two ephemeral keys that learned each other's fingerprint from the daemon. Lanes
// beside it carry the bytes of bulk operations and nothing else.
//
// Trust: the other side shares the memory and may be broken or hostile (a stray
// kernel writes anywhere in its worker). Every length and position is read
// once, checked, and the copy used; a fault ends the link with an error and
// never reaches outside the ring. Payloads handed out alias the ring: what the
// peer changes after the check is data, never a length.
//
// Locks: Conn.tx serialises senders and is a leaf; so do Stream.tx, before rawConn.mu, and Lane.mu. Receiving (Next,
// Arm, Block, TakeFD) belongs to one goroutine at a time; the owner sees to that. Close may be called from anywhere,
// once receiving has stopped.
package link

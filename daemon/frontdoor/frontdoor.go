// Package frontdoor serves the local protocol (ipc/PROTOCOL.md) on a unix socket: it says who the peer is, keeps
// every rule of the frame, and hands objects to the store and sessions to the daemon's Backend. It trusts the
// kernel's word about a peer and nothing that the peer sends.
//
// Goroutines: one accepts; each connection has one that reads, acts and answers, one that waits on the peer's
// pidfd, and one for each Get that waits. Server.Close joins them all.
// Lock order: Server.mu, then connection.sendMu; neither is held during a call of the store or the Backend.
package frontdoor

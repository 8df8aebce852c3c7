// Package transfer decides which way the bytes of a read, a write or a map go between a program and a device.
//
// Route is a pure function: a Request in, a Choice out. The rows of its table (ways) are the table of
// docs/design/transfers.md; a test compares both, and tries every request that there is. Whoever asks for a way gathers
// the Request once, before anything is sent, and carries the answer out without a condition of its own.
//
// Trust: nothing here reads memory or a message. A Request is what package session knows.
//
// Locks: none.
package transfer

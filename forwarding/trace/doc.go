// Package trace is the memory of `tendril trace`: the layout of its buffer, the
// side that appends (driver library), the side that reads, and what is made of
// it: one clock for all processes, a timeline for Perfetto, a summary for a
// terminal. It also counts round trips by cause, traced or not.
//
// The buffer is a memfd of the tracing process. Programs map it and append
// records of 64 bytes; nobody waits for anybody, the oldest are overwritten. So
// a program that crashes leaves all that it had written.
//
// Trust: the reader takes nothing in the buffer for granted, a stray store of
// the traced program may have changed it. Lengths are bounded, positions masked,
// records of unknown kinds skipped. Appenders never read what others wrote but
// the two cursors, which they mask.
//
// Locks: Writer.mu guards the texts that this process has written; a leaf.
package trace

// Package fixed maps memory at given addresses: two processes that share pointers map the same bytes at the same place
// (docs/design/svm.md).
//
// A mapping is reserved first, which takes away nothing that lies there, and then filled: with fresh memory, or with a
// second view of memory that is mapped elsewhere. Sizes are rounded up to whole pages of 4 KiB.
//
// Trust: whoever calls vouches for the addresses that he gives back. There is no state and no lock.
package fixed

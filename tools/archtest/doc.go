// Package archtest holds no code: its tests keep the shape of the repository
// as docs/ARCHITECTURE.md draws it (who may import whom, where cgo and unsafe
// may stand, which room a third-party module serves, one package comment each).
package archtest

// Package archtest holds no code: its tests keep the shape of the repository. They check who imports whom
// (docs/design/imports.md), where cgo and unsafe stand, which room uses a third-party module, that each package has
// one comment, that the circles of files which name each other only shrink, and that tests wait for states.
package archtest

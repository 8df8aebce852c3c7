// Package e2e holds the end-to-end tests: they start the real binary and real
// programs, and break them. Package rig below it starts the daemons.
package e2e

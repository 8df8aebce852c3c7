// Package node is a session's connection to the daemon of a node: devices, workers, shared memory, objects of the
// store.
//
// Control is what a session asks of a daemon; Remote and Peers are Controls that can do more. Dial and DialServer make
// one of a client's connection. Session's tests have daemons of their own.
//
// Trust: the daemon is trusted with memory, and with what it says of devices and workers. No locks.
package node

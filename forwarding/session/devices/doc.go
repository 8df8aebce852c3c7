// Package devices says which of a node's devices a program sees, and what they answer.
//
// Selector chooses devices and their order; Mask takes out of a device's answers what this library does not forward;
// Limits are the numbers that commands are checked against. Pure functions over the snapshot of the node's devices.
//
// Trust: the daemon is trusted with the snapshot; a selector is the user's text. No locks.
package devices

// Package clwire is the session protocol as plain data: the records that a
// driver library and a worker exchange, byte for byte as PROTOCOL.md draws
// them, and the JSON documents that travel beside them. Each record is a
// struct; go generate writes codec.go from them (docs/design/codecs.md).
//
// It trusts nobody. Every decoder bounds each length before it uses it, must
// consume its payload to the end, and returns an error that names the record
// and the fault. Decoders reuse the slices of the message they fill; byte
// fields alias the input and are valid as long as the input is.
//
// The package holds no state and takes no locks.
package clwire

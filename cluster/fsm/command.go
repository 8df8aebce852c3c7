package fsm

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"tendril/store/object"
)

// CommandFormat is the version of the command's header. The layout (cluster/PROTOCOL.md):
//
//	0        1      2      4           20       28
//	| format | zero | type | request   | time   | payload
//	| u8 = 1 | u8   | u16  | 16 bytes  | i64 ns |
const CommandFormat = 1

// Sizes of commands, in bytes.
const (
	headerBytes     = 28
	timeOffset      = 20
	MaxCommandBytes = 1 << 20
)

// Type numbers a command. The table in cluster/PROTOCOL.md is append only.
type Type uint16

// The commands.
const (
	TypeNop               Type = 1
	TypePutNode           Type = 2
	TypeRemoveNode        Type = 3
	TypePutDevices        Type = 4
	TypePutTenant         Type = 5
	TypeRemoveTenant      Type = 6
	TypeCreateToken       Type = 7
	TypeSpendToken        Type = 8
	TypeRevokeToken       Type = 9
	TypeRecordCertificate Type = 10
	TypeRevokeCertificate Type = 11
	TypePublish           Type = 12
	TypeUnpublish         Type = 13
	TypeAddReplica        Type = 14
	TypeRemoveReplica     Type = 15
	TypeWithdraw          Type = 16
	TypeSetPolicy         Type = 17
	TypeSweep             Type = 18
	TypeRenewCertificate  Type = 19
	TypeSetReplicas       Type = 20
	TypeDelete            Type = 21
	TypePutLease          Type = 22
	TypeEndLease          Type = 23
	TypeEndLeases         Type = 24

	TypeRecordAccess       Type = 25
	TypeRevokeCertificates Type = 26
	TypeSetTenant          Type = 27
	TypeEndListedLeases    Type = 28
)

// Command is one change to the metadata. The commands are the exported structs of this package that have these methods.
type Command interface {
	number() Type
	walk(c *codec)
	apply(s *State, at int64) Result
}

// commandTypes is the command table: number, name, and a constructor for the decoder.
var commandTypes = []struct {
	number Type
	name   string
	make   func() Command
}{
	{TypeNop, "Nop", func() Command { return new(Nop) }},
	{TypePutNode, "PutNode", func() Command { return new(PutNode) }},
	{TypeRemoveNode, "RemoveNode", func() Command { return new(RemoveNode) }},
	{TypePutDevices, "PutDevices", func() Command { return new(PutDevices) }},
	{TypePutTenant, "PutTenant", func() Command { return new(PutTenant) }},
	{TypeRemoveTenant, "RemoveTenant", func() Command { return new(RemoveTenant) }},
	{TypeCreateToken, "CreateToken", func() Command { return new(CreateToken) }},
	{TypeSpendToken, "SpendToken", func() Command { return new(SpendToken) }},
	{TypeRevokeToken, "RevokeToken", func() Command { return new(RevokeToken) }},
	{TypeRecordCertificate, "RecordCertificate", func() Command { return new(RecordCertificate) }},
	{TypeRevokeCertificate, "RevokeCertificate", func() Command { return new(RevokeCertificate) }},
	{TypePublish, "Publish", func() Command { return new(Publish) }},
	{TypeUnpublish, "Unpublish", func() Command { return new(Unpublish) }},
	{TypeAddReplica, "AddReplica", func() Command { return new(AddReplica) }},
	{TypeRemoveReplica, "RemoveReplica", func() Command { return new(RemoveReplica) }},
	{TypeWithdraw, "Withdraw", func() Command { return new(Withdraw) }},
	{TypeSetPolicy, "SetPolicy", func() Command { return new(SetPolicy) }},
	{TypeSweep, "Sweep", func() Command { return new(Sweep) }},
	{TypeRenewCertificate, "RenewCertificate", func() Command { return new(RenewCertificate) }},
	{TypeSetReplicas, "SetReplicas", func() Command { return new(SetReplicas) }},
	{TypeDelete, "Delete", func() Command { return new(Delete) }},
	{TypePutLease, "PutLease", func() Command { return new(PutLease) }},
	{TypeEndLease, "EndLease", func() Command { return new(EndLease) }},
	{TypeEndLeases, "EndLeases", func() Command { return new(EndLeases) }},
	{TypeRecordAccess, "RecordAccess", func() Command { return new(RecordAccess) }},
	{TypeRevokeCertificates, "RevokeCertificates", func() Command { return new(RevokeCertificates) }},
	{TypeSetTenant, "SetTenant", func() Command { return new(SetTenant) }},
	{TypeEndListedLeases, "EndListedLeases", func() Command { return new(EndListedLeases) }},
}

// Level says which commands this release knows: a node must know all that its cluster uses.
const Level = uint16(TypeEndListedLeases)

// Encode makes a command's bytes. request makes it idempotent: the same request again, within the last MaxRequests
// requests, changes nothing and gets the same result; the zero request is never remembered. Errors: ErrProtocol when a
// field is beyond its limit, ErrFull when the whole is beyond MaxCommandBytes.
func Encode(request UUID, cmd Command) ([]byte, error) {
	number := cmd.number()
	c := &codec{buf: make([]byte, 0, 256)}
	format, zero, at := uint8(CommandFormat), uint8(0), int64(0)
	c.u8(&format)
	c.u8(&zero)
	c.u16((*uint16)(&number))
	request.walk(c)
	c.i64(&at)
	cmd.walk(c)
	if c.err != nil {
		return nil, fmt.Errorf("command %T: %w", cmd, c.err)
	}
	if len(c.buf) > MaxCommandBytes {
		return nil, fmt.Errorf("%w: command %T takes %d bytes, at most %d go into one", object.ErrFull, cmd, len(c.buf),
			MaxCommandBytes)
	}
	return c.buf, nil
}

// Stamp writes the time (Unix ns) into an encoded command, in place. The leader stamps each command with its own clock
// just before it proposes it; the state machine has no other clock.
func Stamp(raw []byte, at int64) error {
	if _, err := Decode(raw); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(raw[timeOffset:], uint64(at))
	return nil
}

// TypeOf gives the type that an encoded command names; 0: it names none. Nothing else of it is looked at.
func TypeOf(raw []byte) Type {
	if len(raw) < 4 {
		return 0
	}
	return Type(binary.LittleEndian.Uint16(raw[2:]))
}

// Envelope is a decoded command.
type Envelope struct {
	Type    Type
	Request UUID
	Time    int64 // Unix ns
	Command Command
	sum     uint32 // CRC-32 of type and payload: tells a repeated request from another one under the same id
}

// Decode reads a command. It never panics and allocates no more than a small multiple of len(raw). Errors: ErrVersion
// for a format or a type from a newer version, ErrProtocol for everything else that is wrong.
func Decode(raw []byte) (Envelope, error) {
	var e Envelope
	if len(raw) > MaxCommandBytes {
		return e, fmt.Errorf("%w: a command of %d bytes, at most %d", object.ErrProtocol, len(raw), MaxCommandBytes)
	}
	c := &codec{reading: true, buf: raw}
	var format, zero uint8
	c.u8(&format)
	if c.err == nil && format != CommandFormat {
		return e, fmt.Errorf("%w: command format %d, this version reads %d: upgrade this node", object.ErrVersion,
			format, CommandFormat)
	}
	c.u8(&zero)
	if zero != 0 {
		c.fail("byte 1 of a command is %d, want 0", zero)
	}
	c.u16((*uint16)(&e.Type))
	e.Request.walk(c)
	c.i64(&e.Time)
	if c.err != nil {
		return e, c.err
	}
	if e.Type == 0 || int(e.Type) > len(commandTypes) {
		return e, fmt.Errorf("%w: command type %d, this version knows 1 to %d: upgrade this node", object.ErrVersion,
			e.Type, len(commandTypes))
	}
	e.Command = commandTypes[e.Type-1].make()
	e.Command.walk(c)
	if err := c.end(); err != nil {
		return e, fmt.Errorf("command %s: %w", commandTypes[e.Type-1].name, err)
	}
	e.sum = crc32.Update(crc32.ChecksumIEEE(raw[2:4]), crc32.IEEETable, raw[headerBytes:])
	return e, nil
}

package clwire

// Layout of the ring memfd (PROTOCOL.md, Rings). Offsets in bytes; fields that
// different processes write stand on cache lines of their own.
const (
	RingMagic         = 0x31474E5254524454 // "TDRTRNG1", little-endian
	RingHeaderBytes   = 4096
	ToWorkerBytes     = 1 << 20
	ToClientBytes     = 1 << 18
	RingBytes         = RingHeaderBytes + ToWorkerBytes + ToClientBytes
	RingToWorker      = 128 // offset of the to-worker ring's control fields
	RingToClient      = 384
	RingHead          = 0 // consumer's count, from RingToWorker or RingToClient
	RingTail          = 64
	RingConsumerState = 128
)

// Consumer states.
const (
	ConsumerAwake  = 0 // polls: no bell
	ConsumerAsleep = 1 // a bell for every record
	ConsumerLazy   = 2 // a bell for urgent records, and when the ring is half full
)

// Bytes on the doorbell socket.
const (
	Bell       = 'B'
	Descriptor = 'F'
)

// RingHeader is what the daemon writes at the start of a fresh, zeroed memfd
// of RingBytes before it hands it out.
func RingHeader() []byte {
	b := le.AppendUint64(nil, RingMagic)
	b = le.AppendUint64(b, ToWorkerBytes)
	return le.AppendUint64(b, ToClientBytes)
}

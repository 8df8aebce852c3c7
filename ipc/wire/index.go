package wire

// OpenIndexReply says what came with two descriptors: the connection's slots, writable, and level 0 of its tenant's
// table.
//
//wire:payload re OpenIndex
type OpenIndexReply struct {
	SlotsBytes uint64
	LevelBytes uint64
}

// IndexLevelRequest asks for a further level's descriptor; the reply is a Number, its bytes.
//
//wire:payload IndexLevel
type IndexLevelRequest struct{ Level uint8 }

package clwire

// ContentSize says that the u64 at the beginning of the buffer Size counts how many bytes of Buffer mean something,
// from its beginning, whenever that is asked: a BulkRead of a range of Buffer brings no others. Size 0: all do.
//
//wire:record
type ContentSize struct{ Buffer, Size uint64 }

// BulkLength says that a read, or a push between workers, is over with its first Bytes bytes: no chunk beyond them
// comes. Of a read it follows a HostReady where there is one. It comes once at most.
//
//wire:record
type BulkLength struct{ Op, Bytes uint64 }

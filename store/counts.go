package store

import "tendril/store/timing"

// Counts is what happened since the store was opened.
type Counts struct {
	Created       uint64 // objects, replicas and copies among them
	Removed       uint64 // of them those that nobody finds any more: deleted, expired, or their last reference ended
	Evicted       uint64 // objects that left memory and are on disk alone
	EvictedBytes  uint64
	Restored      uint64 // objects that came back from disk
	RestoredBytes uint64
	DroppedCopies uint64 // cached copies of other nodes' objects dropped to free memory
	DroppedFrames uint64 // frames that streams dropped because nobody popped them
	Damaged       uint64 // objects whose bytes were found not to be those that were sealed

	Writes, Reads timing.Counted // of objects to disk and back: how long each took
}

package session

import "tendril/forwarding/clwire"

// What a transfer's bytes travel by: the control stream, where a command's record holds them or they follow it, or the lanes. By a lane one
// of 64 KiB wakes two threads at either end: 500 µs for a frame written, worked on by a GPU and read back, where a native one took 35.
const (
	alwaysRides = 32 << 10  // bytes that ride on any control stream, a ring's too
	rideAhead   = 256 << 10 // bytes of larger ones that ride between two words of the worker's: commands wait behind them
)

// carries says whether so many bytes may ride on the control stream. If they are many, they are counted as riding.
func (w *worker) carries(size uint64) bool {
	switch {
	case size <= alwaysRides:
		return true
	case size > clwire.InlineBytes || w.bulk == nil || w.bulk.compression.Counts().Packed(): // the lanes of a slow link bring fewer bytes
		return false
	}
	return w.riding.Add(size) <= rideAhead
}

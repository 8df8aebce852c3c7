package object

import "time"

// Limits of a stream.
const (
	MaxStreamFrames     = 65536 // that wait in one stream
	DefaultStreamFrames = 16
	MaxStreams          = 1024 // of one tenant
)

// StreamInfo describes a stream of objects. The JSON form is part of ipc/PROTOCOL.md.
type StreamInfo struct {
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
	// "open", "ended" (what waits may still be popped), "broken" (the last writer died)
	State          string       `json:"state"`
	Frames         int          `json:"frames"`
	FramesAtMost   int          `json:"frames_at_most"`
	Bytes          uint64       `json:"bytes"`
	BytesAtMost    uint64       `json:"bytes_at_most,omitempty"` // 0: no bound
	DropOldest     bool         `json:"drop_oldest,omitempty"`
	Keep           bool         `json:"keep,omitempty"` // stays when nobody has it open
	Pushed         uint64       `json:"pushed"`
	Popped         uint64       `json:"popped"`
	Dropped        uint64       `json:"dropped"`
	WaitingWriters int          `json:"waiting_writers"`
	WaitingReaders int          `json:"waiting_readers"`
	Created        time.Time    `json:"created"`
	Users          []StreamUser `json:"users"`
	MoreUsers      int          `json:"more_users,omitempty"` // that are not listed
}

// StreamUser is a connection that has a stream open.
type StreamUser struct {
	PID     int    `json:"pid"`
	Program string `json:"program"`
	Writes  bool   `json:"writes"`
	Reads   bool   `json:"reads"`
}

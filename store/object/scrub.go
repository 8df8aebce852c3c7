package object

import "time"

// mostDamages is how many a report lists.
const mostDamages = 256

// Damage is an object that is not what it was.
type Damage struct {
	ID        ID     `json:"id"`
	Name      string `json:"name"`
	Tenant    string `json:"tenant"`
	SizeBytes uint64 `json:"size_bytes"`
	Where     string `json:"where"` // "memory" or "disk"
	Why       string `json:"why"`
}

// ScrubReport says what one step, or a whole pass, has found. The JSON travels.
type ScrubReport struct {
	Objects     int    `json:"objects"`      // looked at
	MemoryBytes uint64 `json:"memory_bytes"` // compared there
	DiskBytes   uint64 `json:"disk_bytes"`   // compared there
	New         int    `json:"new"`          // objects that have checksums from now on
	// objects that could not be read, being on their way or without memory to map them
	Unread  int      `json:"unread"`
	Damaged []Damage `json:"damaged"`
	More    int      `json:"more"` // damages that are not listed

	Next       string `json:"next,omitempty"`        // where the next step goes on; "": this was the last one
	TotalBytes uint64 `json:"total_bytes,omitempty"` // of a whole pass, about
}

// Damages gives how many there are.
func (r *ScrubReport) Damages() int { return len(r.Damaged) + r.More }

// Add adds another step's.
func (r *ScrubReport) Add(o ScrubReport) {
	r.Objects += o.Objects
	r.MemoryBytes += o.MemoryBytes
	r.DiskBytes += o.DiskBytes
	r.New += o.New
	r.Unread += o.Unread
	r.More += o.More
	for _, d := range o.Damaged {
		r.Note(d)
	}
	r.Next, r.TotalBytes = o.Next, o.TotalBytes
}

// Note adds a damage, or counts it where enough are listed.
func (r *ScrubReport) Note(d Damage) {
	if len(r.Damaged) >= mostDamages {
		r.More++
		return
	}
	r.Damaged = append(r.Damaged, d)
}

// ScrubPass is a pass that has ended.
type ScrubPass struct {
	ScrubReport
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
	By    string    `json:"by"` // the tenant whose process asked; "daemon": it came by itself
}

// ScrubStatus is part of the store's status.
type ScrubStatus struct {
	IntervalSeconds float64    `json:"interval_s"` // between two passes of the store's own; 0: none
	Running         bool       `json:"running"`
	Last            *ScrubPass `json:"last"` // over all objects; nil: none yet
}

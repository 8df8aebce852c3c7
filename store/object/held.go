package object

import "time"

// Holder is a connection that holds references to an object.
type Holder struct {
	PID     int       `json:"pid"`
	Program string    `json:"program"`
	Tenant  string    `json:"tenant"`
	Refs    int       `json:"refs"`
	Since   time.Time `json:"since"` // of the first of them
}

// Held is an object and who holds it. The JSON travels.
type Held struct {
	Info
	Holders     []Holder `json:"holders"`
	MoreHolders int      `json:"more_holders,omitempty"` // that are not listed
}

// Package object is the store's vocabulary: identifiers, lifetime classes, states, kinds, the description of
// an object and the sentinel errors with the numbers they travel under. It holds no state and takes no locks;
// it trusts nobody: every parser here is fed with bytes that a peer chose and checks them.
package object

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// IDBytes is the length of an ID on the wire.
const IDBytes = 16

// ID names an object for ever: 128 random bits, never used again. The zero ID names nothing.
type ID [IDBytes]byte

// NewID draws a fresh ID from the kernel's random source.
func NewID() ID {
	var id ID
	rand.Read(id[:]) // never fails: crypto/rand ends the process when the kernel has no randomness
	return id
}

// ParseID reads 32 hexadecimal digits. Anything else is ErrInvalid.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 2*IDBytes {
		return ID{}, fmt.Errorf("%w: object id %.40q has %d characters, want %d hexadecimal digits", ErrInvalid, s,
			len(s), 2*IDBytes)
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return ID{}, fmt.Errorf("%w: object id %q: %v", ErrInvalid, s, err)
	}
	return id, nil
}

// IsZero reports whether id is the ID that names nothing.
func (id ID) IsZero() bool { return id == ID{} }

// String gives the 32 hexadecimal digits that ParseID reads.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText makes an ID a JSON string.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the reverse of MarshalText.
func (id *ID) UnmarshalText(b []byte) error {
	parsed, err := ParseID(string(b))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// Class says how long an object lives.
type Class uint8

// The lifetime classes; the numbers travel (ipc/PROTOCOL.md).
const (
	Ephemeral Class = 0 // gone with its last reference
	TTL       Class = 1 // gone after a time; references keep its memory a little longer
	Named     Class = 2 // its name holds it until Delete
	Persisted Class = 3 // on disk before it is sealed: survives the daemon and the machine's end, until Delete
)

var classNames = [...]string{"ephemeral", "ttl", "named", "persisted"}

// Valid reports whether c is one of the four classes.
func (c Class) Valid() bool { return int(c) < len(classNames) }

func (c Class) String() string { return nameOf(classNames[:], int(c), "class") }

// MarshalText makes a Class a JSON string.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText is the reverse of MarshalText.
func (c *Class) UnmarshalText(b []byte) error {
	i, err := indexOf(classNames[:], string(b), "class")
	*c = Class(i)
	return err
}

// State is where an object stands in create → fill → seal → delete.
type State uint8

// The states of an object.
const (
	Open    State = 0 // created, its creator fills it
	Sealed  State = 1 // immutable, for Get to read
	Deleted State = 2 // out of the table; its memory waits for the last reference
	Spilled State = 3 // sealed, and on disk alone; Get brings it back
)

var stateNames = [...]string{"open", "sealed", "deleted", "spilled"}

func (s State) String() string { return nameOf(stateNames[:], int(s), "state") }

// MarshalText makes a State a JSON string.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the reverse of MarshalText.
func (s *State) UnmarshalText(b []byte) error {
	i, err := indexOf(stateNames[:], string(b), "state")
	*s = State(i)
	return err
}

// Kind is what sort of memory holds an object's bytes.
type Kind uint8

// The kinds of memory.
const (
	Host   Kind = 0 // a memfd
	CUDA   Kind = 1 // a CUDA VMM allocation, passed as a POSIX descriptor
	OpenCL Kind = 2 // opaque to everyone but its driver
	DMABuf Kind = 3 // reserved
)

var kindNames = [...]string{"host", "cuda", "opencl", "dmabuf"}

func (k Kind) String() string { return nameOf(kindNames[:], int(k), "kind") }

// MarshalText makes a Kind a JSON string.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is the reverse of MarshalText.
func (k *Kind) UnmarshalText(b []byte) error {
	i, err := indexOf(kindNames[:], string(b), "kind")
	*k = Kind(i)
	return err
}

func nameOf(names []string, i int, what string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", what, i)
}

func indexOf(names []string, s, what string) (int, error) {
	for i, n := range names {
		if n == s {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%w: %s %.40q, want one of %v", ErrInvalid, what, s, names)
}

// Limits that hold for every object.
const (
	MaxMetaBytes = 4096 // opaque metadata
	MaxNameBytes = 255  // a name, UTF-8

	MaxLabels     = 16  // of one object
	MaxLabelBytes = 128 // a label's key, and its value
)

// CheckKey says why no object can be found by such a name, of the own tenant or as TENANT/NAME: it is too long.
func CheckKey(name string) error {
	if _, its, of := strings.Cut(name, "/"); len(name) <= MaxNameBytes || of && len(its) <= MaxNameBytes {
		return nil
	}
	return fmt.Errorf("%w: a name of %d bytes (%.40q…): names have at most %d", ErrInvalid, len(name), name, MaxNameBytes)
}

// Info describes one object. The JSON form is part of ipc/PROTOCOL.md.
type Info struct {
	ID         ID              `json:"id"`
	Name       string          `json:"name"`
	Kind       Kind            `json:"kind"`
	Device     Device          `json:"device,omitzero"` // kinds cuda and opencl: in whose memory it lies
	Class      Class           `json:"class"`
	State      State           `json:"state"`
	SizeBytes  uint64          `json:"size_bytes"`
	Tenant     string          `json:"tenant"`
	Refs       int             `json:"refs"`              // references that connections hold, a name's not counted
	Segment    uint64          `json:"segment,omitempty"` // 0 = none: an empty object, or one in a device's memory
	Offset     uint64          `json:"offset"`            // bytes from the segment's start, where there is one
	Created    time.Time       `json:"created"`
	Sealed     *time.Time      `json:"sealed,omitempty"`
	CreatorPID int             `json:"creator_pid"`
	Creator    string          `json:"creator"`
	Meta       json.RawMessage `json:"meta,omitempty"` // see MetaJSON
	Strict     bool            `json:"strict"`         // sealed with F_SEAL_WRITE: no writable mapping exists anywhere

	Labels  map[string]string `json:"labels,omitempty"`
	Expires *time.Time        `json:"expires,omitempty"` // class ttl
	Pinned  bool              `json:"pinned,omitempty"`  // never goes to disk to make room
	OnDisk  bool              `json:"on_disk,omitempty"` // a copy is there, whatever State says
	Moving  *Transfer         `json:"moving,omitempty"`  // between memory and disk, right now
	// what the disk last answered, where that was no success; or what is damaged
	Fault   string   `json:"fault,omitempty"`
	Grants  []string `json:"grants,omitempty"`  // who else may read it: "uid:N", "gid:N", "all"
	Members []Member `json:"members,omitempty"` // of a composite
	Fillers int      `json:"fillers,omitempty"` // other connections that fill it

	Checksum bool `json:"checksum,omitempty"` // checksums of its bytes are known, and compared

	Cached bool `json:"cached,omitempty"` // a copy of what other nodes have, which goes when memory is short
	// Published is the name that it is published under where it has no name here: it is this node's replica or copy.
	Published string   `json:"published,omitempty"`
	Nodes     []string `json:"nodes,omitempty"` // published, and on these nodes alone: a get brings it here
	// CopiedFrom is the kind of memory that such a replica or copy, in host memory, was made of: that of a device of
	// another node. Host: it was host memory there, too.
	CopiedFrom Kind `json:"copied_from,omitempty"`
	// CopiedFromNode names the nodes that its bytes came from, where this daemon brought it here.
	CopiedFromNode string `json:"copied_from_node,omitempty"`
}

// IsReplica says of an object without a name what it is published under, as what kind it was made, and which nodes gave
// it to this one; name "": it is not.
func (o *Info) IsReplica(name string, made Kind, from string) {
	if o.Published = name; name != "" && o.Kind == Host {
		o.CopiedFrom, o.CopiedFromNode = made, from
	}
}

// Member is one of a composite's objects.
type Member struct {
	Name string `json:"name"`
	ID   ID     `json:"id"`
}

// Limits of a composite.
const (
	MaxMembers = 1024  // its own
	MaxDepth   = 16    // composites above each other
	MaxTree    = 65536 // objects in the whole tree
)

// Transfer says how far an object is on its way.
type Transfer struct {
	To        string `json:"to"` // "disk" or "memory"
	DoneBytes uint64 `json:"done_bytes"`
}

// mostMetaDepth is how deep metadata may be nested to be shown as JSON. Clients read it within a listing of many
// objects, and none may make the others unreadable: the C client goes 64 deep, Python's decoder some 1,000.
const mostMetaDepth = 32

// MetaJSON shows opaque metadata in an Info: a JSON value in UTF-8 as it is, anything else, and what is nested deeper
// than 32, as {"base64": "…"}, nothing as nil.
func MetaJSON(meta []byte) json.RawMessage {
	if len(meta) == 0 {
		return nil
	}
	if json.Valid(meta) && utf8.Valid(meta) && depthOf(meta) <= mostMetaDepth {
		return json.RawMessage(meta)
	}
	wrapped, _ := json.Marshal(map[string][]byte{"base64": meta}) // a map of bytes always marshals
	return wrapped
}

// depthOf counts how deep the arrays and objects of valid JSON are nested.
func depthOf(valid []byte) (most int) {
	depth, quoted := 0, false
	for i := 0; i < len(valid); i++ {
		switch c := valid[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++ // what is escaped, perhaps a quote
		case quoted:
		case c == '{' || c == '[':
			depth++
			most = max(most, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return most
}

// Ref says where an object's bytes lie. An empty object has the zero Ref.
type Ref struct {
	Segment      uint64 // number of the segment, never used again; 0 = none
	SegmentBytes uint64 // size of the whole segment: what is to be mapped
	Offset       uint64 // bytes from the segment's start
}

package spill

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"tendril/store/object"
)

// ChunkBytes is the unit of checksums: a ranged read need not read more than the chunks it touches.
const ChunkBytes = 1 << 20

// maxRecordBytes bounds a record's file: the checksums of 1 TiB are 8 MiB, and base64 adds a third.
const maxRecordBytes = 16 << 20

// recordMagic begins a record: the format's number is its last character.
const recordMagic = "TDRLOBJ1"

// Record is what is known of an object besides its bytes.
//
// The file: the magic (8 bytes), u32 length of the JSON, the JSON, u64 XXH64 of all before it; little-endian.
type Record struct {
	ID         object.ID         `json:"id"`
	SizeBytes  uint64            `json:"size_bytes"`
	Tenant     string            `json:"tenant"`
	Name       string            `json:"name,omitempty"`
	Class      object.Class      `json:"class"`
	Meta       []byte            `json:"meta,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Grants     []string          `json:"grants,omitempty"`
	Members    []object.Member   `json:"members,omitempty"` // of a composite
	Pinned     bool              `json:"pinned,omitempty"`
	Created    time.Time         `json:"created"`
	Sealed     time.Time         `json:"sealed"`
	Expires    time.Time         `json:"expires,omitzero"` // class ttl; wall clock
	Bound      time.Time         `json:"bound,omitzero"`   // when it got its name; zero: when it was sealed
	CreatorPID int               `json:"creator_pid"`
	Creator    string            `json:"creator"`
	Sums       []byte            `json:"sums,omitempty"`  // XXH64 of each chunk, 8 bytes each
	Device     object.Device     `json:"device,omitzero"` // the GPU it comes back to; zero: it is of none
}

func (r *Record) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	b := append([]byte(recordMagic), 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(text)))
	b = append(b, text...)
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b)), nil
}

// decodeRecord reads a record's file; what does not check out is ErrStorage.
func decodeRecord(b []byte) (*Record, error) {
	const around = len(recordMagic) + 4 + 8
	if len(b) < around || string(b[:8]) != recordMagic ||
		uint64(binary.LittleEndian.Uint32(b[8:])) != uint64(len(b)-around) {
		return nil, fmt.Errorf("%w: a record of %d bytes is cut short or is none", object.ErrStorage, len(b))
	}
	end := len(b) - 8
	if xxhash.Sum64(b[:end]) != binary.LittleEndian.Uint64(b[end:]) {
		return nil, fmt.Errorf("%w: the record's checksum is wrong", object.ErrStorage)
	}
	r := new(Record)
	if err := json.Unmarshal(b[12:end], r); err != nil {
		return nil, fmt.Errorf("%w: the record: %w", object.ErrStorage, err)
	}
	if !FitSums(r.SizeBytes, r.Sums) || !r.Class.Valid() {
		return nil, fmt.Errorf("%w: the record of %d bytes of class %d has %d bytes of checksums", object.ErrStorage,
			r.SizeBytes, r.Class, len(r.Sums))
	}
	return r, nil
}

// FitSums reports whether an object of size bytes can have these sums.
func FitSums(size uint64, sums []byte) bool { return uint64(len(sums)) == 8*chunks(size) }

func chunks(size uint64) uint64 { return size/ChunkBytes + min(size%ChunkBytes, 1) }

func (r *Record) sum(chunk uint64) uint64 { return binary.LittleEndian.Uint64(r.Sums[8*chunk:]) }

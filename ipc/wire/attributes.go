package wire

import (
	"encoding/binary"
	"maps"
	"slices"

	"tendril/ipc/field"
	"tendril/store/object"
)

// decodeLabels reads u16 count, then count × (str16 key, str16 value), keys in ascending order, each once; nil for
// none.
func decodeLabels(r *field.Reader) map[string]string {
	n := int(r.U16("labels"))
	// one more than allowed, so that the store can say what is wrong
	if n == 0 || !r.Count(n, object.MaxLabels+1, 4, "labels") {
		return nil
	}
	labels, last := make(map[string]string, n), ""
	for i := range n {
		k, v := text(r), text(r)
		if i > 0 && k <= last {
			r.Fail("order of labels")
		}
		labels[k], last = v, k
	}
	return labels
}

func text(r *field.Reader) string { return string(r.Take(int(r.U16("label")), "label")) }

func appendLabels(b []byte, labels map[string]string) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(len(labels)))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b = field.AppendText(field.AppendText(b, k), labels[k])
	}
	return b
}

// CreateWithRequest is Create with what came later. The reply is Create's.
//
//wire:payload CreateWith Upload
type CreateWithRequest struct {
	CreateRequest
	TTLMS  uint64 // class ttl: ms from Seal on
	Labels map[string]string
}

// Update's flags say what is to change.
const (
	UpdatePin     = 1
	UpdateUnpin   = 2
	UpdateTTL     = 4
	UpdateLabels  = 8
	UpdatePersist = 16
)

// UpdateRequest alters a sealed object, by name where ID is zero.
//
//wire:payload Update
type UpdateRequest struct {
	ID     object.ID
	Name   string
	Flags  uint8
	TTLMS  uint64 // from now on; 0 = no end
	Labels map[string]string
}

func (m *UpdateRequest) check(r *field.Reader) {
	if m.Flags >= 2*UpdatePersist || m.Flags&UpdatePin != 0 && m.Flags&UpdateUnpin != 0 {
		r.Fail("flags")
	}
}

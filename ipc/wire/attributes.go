package wire

import (
	"fmt"
	"maps"
	"slices"

	"tendril/store/object"
)

// labels reads u16 count, then count × (str16 key, str16 value), keys in ascending order, each once; nil for none.
func (c *cursor) labels() map[string]string {
	n := int(c.u16())
	if n > object.MaxLabels+1 && c.err == nil { // one more than allowed, so that the store can say what is wrong
		c.err = fmt.Errorf("%w: %d labels", object.ErrProtocol, n)
	}
	if n == 0 || c.err != nil {
		return nil
	}
	labels, last := make(map[string]string, n), ""
	for i := range n {
		k, v := c.str16(), c.str16()
		if c.err == nil && i > 0 && k <= last {
			c.err = fmt.Errorf("%w: label %.40q after %.40q", object.ErrProtocol, k, last)
		}
		labels[k], last = v, k
	}
	return labels
}

func appendLabels(b []byte, labels map[string]string) []byte {
	b = le.AppendUint16(b, uint16(len(labels)))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b = appendStr16(appendStr16(b, k), labels[k])
	}
	return b
}

// CreateWithRequest is Create with what came later. The reply is Create's.
type CreateWithRequest struct {
	CreateRequest
	TTLMS  uint64 // class ttl: ms from Seal on
	Labels map[string]string
}

// AppendTo appends the payload.
func (m *CreateWithRequest) AppendTo(b []byte) []byte {
	return appendLabels(le.AppendUint64(m.CreateRequest.AppendTo(b), m.TTLMS), m.Labels)
}

// Decode reads the payload.
func (m *CreateWithRequest) Decode(b []byte) error {
	c := read(b)
	*m = CreateWithRequest{CreateRequest: c.create(), TTLMS: c.u64(), Labels: c.labels()}
	return c.done()
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
type UpdateRequest struct {
	ID     object.ID
	Name   string
	Flags  uint8
	TTLMS  uint64 // from now on; 0 = no end
	Labels map[string]string
}

// AppendTo appends the payload.
func (m *UpdateRequest) AppendTo(b []byte) []byte {
	b = append(appendStr16(append(b, m.ID[:]...), m.Name), m.Flags)
	return appendLabels(le.AppendUint64(b, m.TTLMS), m.Labels)
}

// Decode reads the payload.
func (m *UpdateRequest) Decode(b []byte) error {
	c := read(b)
	*m = UpdateRequest{ID: c.id(), Name: c.str16(), Flags: c.u8(), TTLMS: c.u64(), Labels: c.labels()}
	if c.err == nil && (m.Flags&^31 != 0 || m.Flags&3 == 3) {
		c.err = fmt.Errorf("%w: Update flags 0x%x", object.ErrProtocol, m.Flags)
	}
	return c.done()
}

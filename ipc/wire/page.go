package wire

// Listings go page by page: a request says where to go on, and its reply how. A cursor is the daemon's text, which nobody else reads.

// MaxCursor bounds a cursor in bytes.
const MaxCursor = 1024

// ListPageRequest asks for a page of a ListWhere.
type ListPageRequest struct {
	ListWhereRequest
	Limit  uint32 // most entries; 0: the daemon's most, which it never exceeds
	Cursor string // "" is the beginning
}

// AppendTo appends the payload.
func (m *ListPageRequest) AppendTo(b []byte) []byte {
	return appendStr16(le.AppendUint32(m.ListWhereRequest.AppendTo(b), m.Limit), m.Cursor)
}

// Decode reads the payload.
func (m *ListPageRequest) Decode(b []byte) error {
	c := read(b)
	*m = ListPageRequest{
		ListWhereRequest: ListWhereRequest{Prefix: c.str16(), All: c.bool(), Shared: c.bool(), Labels: c.labels()}, Limit: c.u32(), Cursor: c.str16(),
	}
	return c.done()
}

// PageRequest asks for a page of one of the other listings.
type PageRequest struct {
	Prefix string // of the name, where the things listed have one
	Limit  uint32 // as in ListPageRequest
	Cursor string
}

// AppendTo appends the payload.
func (m *PageRequest) AppendTo(b []byte) []byte {
	return appendStr16(le.AppendUint32(appendStr16(b, m.Prefix), m.Limit), m.Cursor)
}

// Decode reads the payload.
func (m *PageRequest) Decode(b []byte) error {
	c := read(b)
	*m = PageRequest{Prefix: c.str16(), Limit: c.u32(), Cursor: c.str16()}
	return c.done()
}

// PageReply is a page: a JSON array, perhaps an empty one. Next is the cursor of the page behind it; "" is the end.
type PageReply struct {
	Next  string
	Items []byte // JSON
}

// AppendTo appends the payload.
func (m *PageReply) AppendTo(b []byte) []byte {
	return appendBytes32(appendStr16(b, m.Next), m.Items)
}

// Decode reads the payload.
func (m *PageReply) Decode(b []byte) error {
	c := read(b)
	*m = PageReply{Next: c.str16(), Items: c.bytes32()}
	return c.done()
}

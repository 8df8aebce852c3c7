package wire

// Listings go page by page: a request says where to go on, and its reply how. A cursor is the daemon's text, which
// nobody else reads.

// MaxCursor bounds a cursor in bytes.
const MaxCursor = 1024

// ListPageRequest asks for a page of a ListWhere.
//
//wire:payload ListPage AllPage
type ListPageRequest struct {
	ListWhereRequest
	Limit  uint32 // most entries; 0: the daemon's most, which it never exceeds
	Cursor string // "" is the beginning
}

// PageRequest asks for a page of one of the other listings.
//
//wire:payload StreamPage PublishedPage TokenPage PeerPage TopPage SessionPage CertificatePage TenantPage
type PageRequest struct {
	Prefix string // of the name, where the things listed have one
	Limit  uint32 // as in ListPageRequest
	Cursor string
}

// PageReply is a page: a JSON array, perhaps an empty one. Next is the cursor of the page behind it; "" is the end.
//
//wire:payload re ListPage StreamPage PublishedPage TokenPage PeerPage TopPage SessionPage AllPage
//wire:payload CertificatePage TenantPage
type PageReply struct {
	Next  string
	Items []byte // JSON
}

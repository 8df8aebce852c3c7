package frontdoor

import (
	"encoding/json"
	"fmt"
	"strings"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
	"tendril/store/order"
)

// Listings. A page has a bound in entries and one in bytes, which is smaller while the tenant's requests hold much
// (store.ChargeRequest). A listing in one answer, which clients of earlier releases ask for, is written in pieces of a
// page.

const (
	pageEntries = 1000      // of one page, at most
	pageBytes   = 256 << 10 // of one page, but it has one entry in any case
	pageLeast   = 16 << 10  // the same, where the tenant's requests hold too much for more
	// objects looked at for a page: where few of many are asked for it may be empty and have a next one
	pageLook      = 16 << 10
	pageTop       = 128       // objects of one page of Top
	maxTop        = 10_000    // objects of one Top
	maxUnpaged    = 255 << 20 // bytes of a listing in one answer: clients take 256 MiB
	pageLetters   = 2         // how often a page is in memory while it is sent: alone, and in what is sent
	unpagedAdvice = "list in pages: update the client"
)

// listing calls f with each thing behind a cursor and with the cursor behind it, in order, until f answers false. next
// is where to go on where f did not; "" is the end.
type listing func(after string, f func(item any, at string) bool) (next string, err error)

// page is a JSON array that grows up to a bound.
type page struct {
	items []byte
	n     int
}

// add appends an item; false: it would be too many or too much.
func (p *page) add(item any, entries, bytes int) (bool, error) {
	b, err := json.Marshal(item)
	if err != nil || p.n > 0 && (p.n >= entries || len(p.items)+len(b)+2 > bytes) {
		return false, err
	}
	if p.n > 0 {
		p.items = append(p.items, ',')
	}
	p.items = append(p.items, b...)
	p.n++
	return true, nil
}

// budget charges for a page and says how many bytes it may have; done takes the charge back, with what the page had
// more than that.
func (c *connection) budget() (bytes int, done func(took int)) {
	bytes = pageBytes
	if c.store.ChargeRequest(pageLetters*pageBytes) != nil {
		bytes = pageLeast
		c.store.ChargeUnread(pageLetters * pageLeast)
	}
	return bytes, func(took int) { c.store.UnchargeRequest(pageLetters * uint64(max(bytes, took))) }
}

// fill adds what a listing has behind a cursor, and gives where to go on.
func (p *page) fill(list listing, cursor string, entries, bytes int) (next string, err error) {
	var fault error
	full, last := false, cursor
	next, err = list(cursor, func(item any, at string) bool {
		var taken bool
		if taken, fault = p.add(item, entries, bytes); !taken {
			full = true
			return false
		}
		last = at
		return true
	})
	if fault != nil {
		err = fault
	}
	if full {
		next = last
	}
	return next, err
}

// replyPage answers with a page.
func (c *connection) replyPage(f *ipc.Frame, limit uint32, cursor string, list listing) (err error) {
	entries := pageEntries
	if limit > 0 {
		entries = min(entries, int(min(limit, pageEntries)))
	}
	p, next, most, done := page{items: []byte{'['}}, "", 0, func(int) {}
	defer func() { done(len(p.items)) }()
	c.compute(func() {
		most, done = c.budget()
		next, err = p.fill(list, cursor, entries, most)
	})
	if err != nil {
		return err
	}
	p.items = append(p.items, ']')
	if extra := len(p.items) - most; extra > 0 {
		c.store.ChargeUnread(pageLetters * uint64(extra))
	}
	reply := wire.PageReply{Next: next, Items: p.items}
	return c.replyLater(func() {
		if len(p.items) < ipc.MaxPayload/2 {
			c.reply(f, &reply)
		} else {
			c.replyLong(f, reply.Append(nil))
		}
		c.flush() // its memory is charged as long as it is not sent
	})
}

// replyList answers with a whole listing, in pieces.
func (c *connection) replyList(f *ipc.Frame, list listing) error {
	most, done := c.budget()
	defer done(0)
	c.mu.Lock() // no other reply comes between
	defer c.mu.Unlock()
	p := page{items: []byte{'['}}
	total, first := 0, true
	over := c.srv.PageTurn(c.peer.Tenant)
	defer func() { over() }()
	send := func(flags uint16) error {
		total += len(p.items)
		c.appendRaw(f, flags, p.items)
		p = page{items: p.items[:0]}
		over() // who does not read keeps nobody waiting
		err := c.flush()
		over = c.srv.PageTurn(c.peer.Tenant)
		return err
	}
	var fault error
	put := func(item any) (ok bool) {
		if p.n == 0 && !first {
			p.items = append(p.items, ',')
		}
		ok, fault = p.add(item, pageEntries, most)
		return ok
	}
	after := ""
	for next := "?"; next != "" && fault == nil; {
		var err error
		next, err = list(after, func(item any, at string) bool {
			if !put(item) && fault == nil {
				fault = send(ipc.FlagMore)
				first = false
				if fault == nil && total > maxUnpaged {
					fault = fmt.Errorf("%w: more than %d bytes in one answer: %s", object.ErrUnsupported, maxUnpaged,
						unpagedAdvice)
				}
				if fault == nil {
					put(item)
				}
			}
			return fault == nil
		})
		if fault == nil {
			fault = err
		}
		after = next
	}
	switch {
	case c.sendErr != nil:
		return nil // loop meets it
	case fault != nil:
		return fault
	}
	p.items = append(p.items, ']')
	c.appendRaw(f, 0, p.items)
	over()
	c.flush() // a failure is met by loop
	return nil
}

func queryOf(m wire.ListWhereRequest) store.Query {
	return store.Query{Prefix: m.Prefix, All: m.All, Shared: m.Shared, Labels: m.Labels}
}

// objects lists what the store's Walk gives.
func (c *connection) objects(q store.Query) listing {
	return func(after string, f func(any, string) bool) (string, error) {
		from, err := order.Parse(after)
		if err != nil {
			return "", err
		}
		next, more := c.store.Walk(q, from, pageLook, func(o object.Info) bool {
			c.called(&o)
			return f(o, order.At(o.Created, o.ID).String())
		})
		if !more {
			return "", nil
		}
		return next.String(), nil
	}
}

// largest lists what Top gives, up to limit.
func (c *connection) largest(limit int) listing {
	return func(after string, f func(any, string) bool) (string, error) {
		from, err := store.ParseTopCursor(after)
		if err != nil {
			return "", err
		}
		asked := min(limit, pageTop)
		list, places := c.store.Top(asked, from)
		for i, held := range list {
			c.called(&held.Info)
			if !f(held, places[i].String()) {
				return "", nil
			}
		}
		if limit -= len(list); limit <= 0 || len(list) < asked {
			return "", nil
		}
		return places[len(places)-1].String(), nil
	}
}

func (c *connection) streamsOf(prefix string) listing {
	return func(after string, f func(any, string) bool) (string, error) {
		c.store.EachStream(prefix, after, func(s object.StreamInfo) bool { return f(s, s.Name) })
		return "", nil
	}
}

func (c *connection) listPage(f *ipc.Frame, m wire.ListPageRequest) error {
	return c.replyPage(f, m.Limit, m.Cursor, c.objects(queryOf(m.ListWhereRequest)))
}

// allPage is listPage over everybody's objects.
func (c *connection) allPage(f *ipc.Frame, m wire.ListPageRequest) error {
	if m.Shared {
		return fmt.Errorf("%w: AllPage has no Shared: it lists everybody's objects", object.ErrInvalid)
	}
	return c.replyPage(f, m.Limit, m.Cursor, func(after string, f func(any, string) bool) (string, error) {
		return c.store.WalkAll(queryOf(m.ListWhereRequest), after, pageLook,
			func(o object.Info, place string) bool {
				c.called(&o)
				return f(o, place)
			})
	})
}

func (c *connection) streamList(m wire.WatchRequest) (listing, error) {
	return c.streamsOf(m.Prefix), nil
}

func (c *connection) streamPage(m *wire.PageRequest) (listing, error) {
	return c.streamsOf(m.Prefix), nil
}

// topPage asks for one more than the page may have, so that there is a next one until there are no more objects.
func (c *connection) topPage(m *wire.PageRequest) (listing, error) {
	if m.Limit == 0 {
		m.Limit = pageTop
	}
	return c.largest(int(min(m.Limit, pageTop)) + 1), nil
}

// askPublished has a listing of what is published begin with what the cluster knows. Where it does not answer the list
// is what this node knows: unsure says why. mu is not held.
func (c *connection) askPublished(first bool) (cluster Cluster, unsure, err error) {
	cluster, err = c.cluster()
	if err == nil {
		err = c.mustEnter()
	}
	if err == nil && first {
		if q := cluster.CatchUp(); q != nil {
			unsure = c.awaitCluster(q)
		}
	}
	return cluster, unsure, err
}

// listPublished is for clients of earlier releases, which take no word for a part of it.
func (c *connection) listPublished(m wire.ListRequest) (listing, error) {
	cluster, unsure, err := c.askPublished(true)
	return func(after string, f func(any, string) bool) (string, error) {
		return "", cluster.EachPublished(c.peer.Tenant, m.Prefix, after, unsure, f)
	}, err
}

// unsureCursor begins the cursors of a listing whose first page had no answer from the cluster. No name is as long.
var unsureCursor = strings.Repeat("?", object.MaxNameBytes+1)

// publishedPage ends a listing that its cluster did not answer by saying so, in place of an empty page.
func (c *connection) publishedPage(m *wire.PageRequest) (listing, error) {
	cluster, unsure, err := c.askPublished(m.Cursor == "")
	if strings.HasPrefix(m.Cursor, unsureCursor) {
		unsure = ErrUnanswered
	}
	mark := ""
	if unsure != nil {
		mark = unsureCursor
	}
	return func(after string, f func(any, string) bool) (last string, err error) {
		err = cluster.EachPublished(c.peer.Tenant, m.Prefix, strings.TrimPrefix(after, mark), unsure,
			func(item any, at string) bool {
				last = mark + at
				return f(item, last)
			})
		switch {
		case err != nil || unsure == nil:
			return "", err
		case last == "":
			err = fmt.Errorf("%w: the list may lack objects: %v", object.ErrTimeout, unsure)
		}
		return last, err
	}, err
}

func (c *connection) tokens(none) (listing, error) {
	cluster, err := c.cluster()
	return func(after string, f func(any, string) bool) (string, error) { return "", cluster.EachToken(after, f) }, err
}

func (c *connection) tokenPage(*wire.PageRequest) (listing, error) { return c.tokens(none{}) }

func (c *connection) certificatePage(*wire.PageRequest) (listing, error) {
	cluster, err := c.cluster()
	return func(after string, f func(any, string) bool) (string, error) {
		return "", cluster.EachCertificate(after, f)
	}, err
}

func (c *connection) tenantPage(*wire.PageRequest) (listing, error) {
	cluster, err := c.cluster()
	return func(after string, f func(any, string) bool) (string, error) { return "", cluster.EachTenant(after, f) }, err
}

func (c *connection) peerPage(*wire.PageRequest) (listing, error) {
	peers, err := c.peers()
	return func(after string, f func(any, string) bool) (string, error) { return "", peers.EachPeer(after, f) }, err
}

func (c *connection) sessionPage(*wire.PageRequest) (listing, error) {
	return func(after string, f func(any, string) bool) (string, error) {
		return "", c.srv.opts.Backend.EachSession(c.peer, after, f)
	}, nil
}

// lists is on for a listing in one answer.
func lists[M any, P request[M]](of func(*connection, M) (listing, error)) func(*connection, *ipc.Frame) error {
	return on[M, P](func(c *connection, f *ipc.Frame, m M) error {
		list, err := of(c, m)
		if err != nil {
			return err
		}
		return c.replyList(f, list)
	})
}

// pages is on for a page of a listing.
func pages(of func(*connection, *wire.PageRequest) (listing, error)) func(*connection, *ipc.Frame) error {
	return on(func(c *connection, f *ipc.Frame, m wire.PageRequest) error {
		list, err := of(c, &m)
		if err != nil {
			return err
		}
		return c.replyPage(f, m.Limit, m.Cursor, list)
	})
}

func (c *connection) list(m wire.ListRequest) (listing, error) {
	return c.objects(store.Query{Prefix: m.Prefix, All: m.All}), nil
}

func (c *connection) listWhere(m wire.ListWhereRequest) (listing, error) {
	return c.objects(queryOf(m)), nil
}

func (c *connection) top(m wire.Number) (listing, error) {
	return c.largest(int(min(m.N, maxTop))), nil
}

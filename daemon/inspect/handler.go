package inspect

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"tendril/cluster/raftnode"
	"tendril/daemon/audit"
	"tendril/daemon/leases"
	"tendril/store/object"
)

// failure is an answer that is no success: problem details (RFC 9457), what is wrong, and what to do next.
type failure struct {
	Type   string `json:"type"`   // about:blank: the status says what kind it is
	Title  string `json:"title"`  // the status in words
	Status int    `json:"status"` // as in the status line
	Detail string `json:"detail"` // what is wrong
	Error  string `json:"error"`  // the same, for earlier clients
	Next   string `json:"next"`   // what to do
}

// route is one row of the table of everything that there is. A path may hold {id}, which is an object's or a session's.
type route struct {
	path   string
	what   string // one sentence of the OpenAPI document
	open   bool   // needs no token: holds no data
	paged  bool   // takes limit, after and prefix
	scrape bool   // a Scraper may ask for it
	takes  string // what it takes besides: of state, tenant and since
	reads  bool   // files: or asks workers: it takes no turn, so that nobody waits for those
	of     any    // the zero value of what it answers, or of one of a list; nil: no JSON
	listed bool   // a list of those
	stream bool   // of server-sent events, whose data are those
	answer func(s *Server, v Viewer, q query) (any, error)
}

// query is what a request says besides its path's pattern.
type query struct {
	Page
	id     object.ID
	number uint64 // of a session
	place  string // of a stream: behind which to go on
}

// routes is the table, made once a process and never changed.
var routes = []route{
	{path: "/v1/status", what: "The node in a few lines.", of: Status{}, answer: func(s *Server, v Viewer, _ query) (any, error) {
		return s.opts.Source.Status(v)
	}},
	{path: "/v1/nodes", what: "The members of the cluster.", of: Node{}, listed: true,
		answer: func(s *Server, v Viewer, _ query) (any, error) { return items(s.opts.Source.Nodes(v)) }},
	{path: "/v1/devices", what: "OpenCL devices of all nodes.", of: Device{}, listed: true,
		answer: func(s *Server, v Viewer, _ query) (any, error) { return items(s.opts.Source.Devices(v)) }},
	{path: "/v1/objects", what: "Objects of this node's store, by tenant, the oldest first.", paged: true, takes: "state tenant",
		of: object.Info{}, listed: true, answer: func(s *Server, v Viewer, q query) (any, error) {
			return part(s.opts.Source.Objects(v, q.Page))
		}},
	{path: "/v1/objects/{id}", what: "One object.", of: object.Info{},
		answer: func(s *Server, v Viewer, q query) (any, error) { return s.opts.Source.Object(v, q.id) }},
	{path: "/v1/objects/{id}/data", what: "The bytes of a sealed object, or a range of them.", reads: true,
		answer: func(s *Server, v Viewer, q query) (any, error) {
			data, err := s.opts.Source.Open(v, q.id)
			return opened{q.id, data}, err
		}},
	{path: "/v1/names", what: "Published names, by tenant and name.", paged: true, of: Name{}, listed: true,
		answer: func(s *Server, v Viewer, q query) (any, error) { return part(s.opts.Source.Names(v, q.Page)) }},
	{path: "/v1/sessions", what: "Programs that use forwarded devices.", paged: true, of: Session{}, listed: true,
		answer: func(s *Server, v Viewer, q query) (any, error) {
			return cut(q.Page, func(x Session) (place, name string) {
				return padded(x.ID), x.Program
			})(s.opts.Source.Sessions(v))
		}},
	{path: "/v1/sessions/{id}/commands", what: "What a session's queues have in flight, and where its time went.",
		of: Commands{}, reads: true, answer: func(s *Server, v Viewer, q query) (any, error) {
			return s.opts.Source.Commands(v, q.number)
		}},
	{path: "/v1/workers", what: "Processes that run drivers.", of: Worker{}, listed: true,
		answer: func(s *Server, v Viewer, _ query) (any, error) { return items(s.opts.Source.Workers(v)) }},
	{path: "/v1/segments", what: "Pieces of shared memory.", paged: true, of: Segment{}, listed: true,
		answer: func(s *Server, v Viewer, q query) (any, error) {
			return cut(q.Page, func(x Segment) (place, name string) {
				return padded(strconv.FormatUint(x.ID, 10)), ""
			})(s.opts.Source.Segments(v))
		}},
	{path: "/v1/raft", what: "The state of the metadata's log.", of: raftnode.Status{},
		answer: func(s *Server, v Viewer, _ query) (any, error) { return s.opts.Source.Raft(v) }},
	{path: "/v1/leases", what: "Leases of devices: who has them, then who waits.", paged: true, of: leases.Status{},
		listed: true, answer: func(s *Server, v Viewer, q query) (any, error) {
			all, err := s.opts.Source.Leases(v)
			return numbered(q.Page, all, func(l leases.Status) string { return l.Tenant }, err)
		}},
	{path: "/v1/streams", what: "Streams, by tenant and name.", paged: true, of: object.StreamInfo{}, listed: true,
		answer: func(s *Server, v Viewer, q query) (any, error) { return part(s.opts.Source.Streams(v, q.Page)) }},
	{path: "/v1/links", what: "Links between nodes, programs and workers: what they go over, and why nothing better.",
		paged: true, of: Link{}, listed: true, answer: func(s *Server, v Viewer, q query) (any, error) {
			all, err := s.opts.Source.Links(v)
			return numbered(q.Page, all, func(l Link) string { return l.Name }, err)
		}},
	{path: "/v1/config", what: "The configuration in force; for the daemon's owner.", of: Setting{}, listed: true,
		answer: func(s *Server, v Viewer, _ query) (any, error) { return items(s.opts.Source.Settings(v)) }},
	{path: "/v1/tenants", what: "The records of tenants, by name; for the daemon's owner.", paged: true, of: Tenant{},
		listed: true, answer: func(s *Server, v Viewer, q query) (any, error) {
			return part(s.opts.Source.Tenants(v, q.Page))
		}},
	{path: "/v1/tokens", what: "Tokens without their secrets, the oldest first; for the daemon's owner.", paged: true,
		of: Token{}, listed: true,
		answer: func(s *Server, v Viewer, q query) (any, error) { return part(s.opts.Source.Tokens(v, q.Page)) }},
	{path: "/v1/certificates", what: "Certificates, by serial number; for the daemon's owner.", paged: true,
		of: Certificate{}, listed: true, answer: func(s *Server, v Viewer, q query) (any, error) {
			return part(s.opts.Source.Certificates(v, q.Page))
		}},
	{path: "/v1/audit", what: "Who did what at this node, or at all, the oldest first; for the daemon's owner.", paged: true,
		takes: "tenant since node", reads: true, of: audit.Event{}, listed: true,
		answer: func(s *Server, v Viewer, q query) (any, error) { return part(s.opts.Source.Audit(v, q.Page)) }},
	{path: "/v1/history", what: "Samples of the last hour.", of: History{},
		answer: func(s *Server, v Viewer, _ query) (any, error) { return s.opts.Source.History(v) }},
	{path: "/v1/events", what: "Server-sent events: what changes, until the client or the daemon ends.", of: Event{},
		stream: true, answer: func(s *Server, v Viewer, q query) (any, error) {
			reader, done, err := s.opts.Source.Changes(v, q.place)
			return following{reader, done}, err
		}},
	{path: "/v1/openapi.json", what: "This document.", open: true,
		answer: func(s *Server, _ Viewer, _ query) (any, error) { return s.document, nil }},
	{path: "/metrics", what: "Samples for Prometheus, text format 0.0.4.", scrape: true,
		answer: func(s *Server, v Viewer, _ query) (any, error) {
			m, err := s.opts.Source.Metrics(v)
			return metricsText(append(m, s.metrics()...)), err
		}},
	{path: "/healthz", what: "200 while the daemon answers.", open: true, of: health{},
		answer: func(*Server, Viewer, query) (any, error) { return health{Status: "ok", Waiting: []string{}}, nil }},
	{path: "/readyz", what: "200 once the node serves clients; else 503, with what it waits for.", open: true,
		of: health{}, answer: func(s *Server, _ Viewer, _ query) (any, error) {
			if waiting := s.opts.Source.Waiting(); len(waiting) > 0 {
				return health{Status: "waiting", Waiting: waiting}, nil
			}
			return health{Status: "ok", Waiting: []string{}}, nil
		}},
	{path: "/", what: "The paths.", open: true,
		answer: func(s *Server, _ Viewer, _ query) (any, error) { return s.index, nil }},
	{path: "/ui", what: "A page for people.", open: true,
		answer: func(s *Server, _ Viewer, _ query) (any, error) { return s.page, nil }},
}

// health is the answer at /healthz and /readyz: it holds nothing that strangers may not know.
type health struct {
	Status  string   `json:"status"`  // ok or waiting
	Waiting []string `json:"waiting"` // for what
}

// list is the form of every answer with several things.
type list[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"` // pass it as after to go on; absent at the end
	Total int    `json:"total,omitempty"`

	Silent []string `json:"silent,omitempty"` // nodes that did not answer: what they know is missing
	Unsure string   `json:"unsure,omitempty"` // why the node may know less than its cluster
}

func items[T any](ts []T, err error) (any, error) {
	if ts == nil {
		ts = []T{}
	}
	return list[T]{Items: ts}, err
}

func part[T any](p Part[T], err error) (any, error) {
	if p.Items == nil {
		p.Items = []T{}
	}
	return list[T](p), err
}

// padded makes decimal numbers sort as numbers do.
func padded(number string) string { return strings.Repeat("0", max(20-len(number), 0)) + number }

// cut gives a page of a list that is whole, in the order of places.
func cut[T any](p Page, of func(T) (place, name string)) func([]T, error) (any, error) {
	return func(ts []T, err error) (any, error) {
		l := list[T]{Items: []T{}}
		last := ""
		for _, t := range ts {
			place, name := of(t)
			if place <= p.After || !strings.HasPrefix(name, p.Prefix) {
				continue
			}
			if len(l.Items) == p.Limit {
				l.Next = last
				break
			}
			l.Items, last = append(l.Items, t), place
		}
		return l, err
	}
}

// numbered gives a page of a list that is whole, by its places in the list. nameOf is what prefixes are of.
func numbered[T any](p Page, ts []T, nameOf func(T) string, err error) (any, error) {
	i := 0
	return cut(p, func(t T) (place, name string) {
		i++
		return padded(strconv.Itoa(i)), nameOf(t)
	})(ts, err)
}

// index says what there is.
func index() any {
	paths := []string{}
	for _, r := range routes {
		paths = append(paths, r.path)
	}
	return map[string][]string{"paths": paths}
}

// handle answers one request. ctx dies with it and is kept nowhere.
func (s *Server) handle(ctx *fasthttp.RequestCtx, d *door) {
	harden(ctx)
	defer s.count(ctx)
	if v := visitorOf(ctx.Conn()); v != nil {
		v.answers()
	}
	viewer, denied := s.viewer(ctx, d)
	r, id, number := find(string(ctx.Path()))
	if s.opts.Turn != nil && (r == nil || !r.reads) {
		defer s.opts.Turn(viewer)()
	}
	if !d.local && !s.hostAllowed(ctx) {
		refuse(ctx, fasthttp.StatusMisdirectedRequest, "the Host header names another place than this node",
			"use http://127.0.0.1 or http://localhost with the port, or add the name to the daemon's configuration")
		return
	}
	if crossSite(ctx) {
		refuse(ctx, fasthttp.StatusForbidden, "a page of another site asks", "open this node's own page")
		return
	}
	if r == nil {
		what, next := nothingAt(string(ctx.Path()))
		refuse(ctx, fasthttp.StatusNotFound, what, next)
		return
	}
	if denied != nil && r.scrape && s.opts.OpenMetrics && !d.local {
		viewer, denied = Viewer{Scraper: true}, nil
	}
	if denied == nil && viewer.Scraper && !r.open && !r.scrape {
		refuse(ctx, fasthttp.StatusForbidden, "this token is for /metrics and nothing else", letIn(r, d))
		return
	}
	if denied != nil && !r.open {
		ctx.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, "Bearer")
		refuse(ctx, fasthttp.StatusUnauthorized, why(denied), letIn(r, d))
		return
	}
	page, err := readPage(ctx.QueryArgs(), r)
	if err != nil {
		refuse(ctx, fasthttp.StatusBadRequest, err.Error(), "limit is 1 to 1000; after is the next of the last answer; "+
			"prefix begins a name; node is all; since is a time such as 2026-01-31T12:00:00Z: /v1/openapi.json says what a path takes")
		return
	}
	s.reply(ctx, r, viewer, query{page, id, number, string(ctx.Request.Header.Peek("Last-Event-ID"))})
}

// find gives the row of a path, and the object or the session that the path names.
func find(path string) (r *route, id object.ID, number uint64) {
	pattern := path
	if rest, ok := strings.CutPrefix(path, "/v1/sessions/"); ok {
		name, behind, _ := strings.Cut(rest, "/")
		var err error
		if number, err = strconv.ParseUint(name, 10, 64); err != nil {
			return nil, id, 0
		}
		pattern = "/v1/sessions/{id}/" + behind
	}
	if rest, ok := strings.CutPrefix(path, "/v1/objects/"); ok {
		name, behind, _ := strings.Cut(rest, "/")
		var err error
		if id, err = object.ParseID(name); err != nil {
			return nil, id, 0
		}
		pattern = strings.TrimSuffix("/v1/objects/{id}/"+behind, "/")
	}
	for i := range routes {
		if routes[i].path == pattern {
			return &routes[i], id, number
		}
	}
	return nil, id, 0
}

// nothingAt says why there is nothing at a path, and what to ask for. No object is there by its name: that may hold
// slashes.
func nothingAt(path string) (what, next string) {
	name, ok := strings.CutPrefix(path, "/v1/objects/")
	name = strings.TrimSuffix(name, "/data")
	id, _, _ := strings.Cut(name, "/")
	if _, err := object.ParseID(id); !ok || name == "" || err == nil {
		return "there is nothing at this path", "GET / lists what there is"
	}
	return fmt.Sprintf("the path of an object has its ID, 32 hexadecimal digits, not %.80q", name),
		"GET /v1/objects?prefix=" + url.QueryEscape(name) + " lists the objects whose names begin so, with their IDs"
}

// harden sets the headers of every answer.
func harden(ctx *fasthttp.RequestCtx) {
	h := &ctx.Response.Header
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
}

// hostAllowed checks the Host header and the request line's own host, which may differ from it (RFC 9112 §3.2.2).
func (s *Server) hostAllowed(ctx *fasthttp.RequestCtx) bool {
	header := strings.ToLower(string(ctx.Request.Header.Host()))
	line := strings.ToLower(string(ctx.Host()))
	return s.hosts[header] && s.hosts[line]
}

// crossSite reports whether a browser says that another site asks (Fetch Metadata, RFC 6454 for Origin).
func crossSite(ctx *fasthttp.RequestCtx) bool {
	switch string(ctx.Request.Header.Peek("Sec-Fetch-Site")) {
	case "", "none", "same-origin":
	default:
		return true
	}
	origin := string(ctx.Request.Header.Peek("Origin"))
	return origin != "" && !strings.EqualFold(origin, "http://"+string(ctx.Host()))
}

// viewer says who asks, or why that is nobody who may look.
func (s *Server) viewer(ctx *fasthttp.RequestCtx, d *door) (Viewer, error) {
	if d.local {
		v := visitorOf(ctx.Conn())
		switch {
		case v == nil || !v.known:
			return Viewer{}, errors.New("the kernel does not say which user asks")
		case !s.opts.AllowUID(v.uid):
			return Viewer{}, fmt.Errorf("user %d may not inspect this daemon", v.uid)
		}
		return Viewer{Local: true, UID: v.uid, GID: v.gid}, nil
	}
	header := string(ctx.Request.Header.Peek(fasthttp.HeaderAuthorization))
	scheme, secret, _ := strings.Cut(header, " ")
	switch secret = strings.TrimSpace(secret); {
	case header == "":
		return Viewer{}, errors.New("the request has no token")
	case !strings.EqualFold(scheme, "Bearer") || secret == "":
		return Viewer{}, errors.New("the Authorization header has no Bearer token")
	}
	return s.opts.Bearer(secret)
}

// why is what a refusal says behind the kind of error that it is.
func why(denied error) string {
	text := denied.Error()
	for _, kind := range []error{object.ErrPermission, object.ErrInvalid} {
		text = strings.TrimPrefix(text, kind.Error()+": ")
	}
	return text
}

// letIn says to who was refused at a path what would let them in.
func letIn(r *route, d *door) string {
	switch {
	case d.local:
		return "ask as root, or as the user whose daemon this is"
	case r.scrape:
		return "make a token with: tendril token create --role metrics; send it as Authorization: Bearer TOKEN"
	}
	return "run: tendril ui; the address that it prints has the key of a page behind token=, which is good for a day; " +
		"scripts send it as Authorization: Bearer KEY"
}

var errArguments = errors.New("a query argument is unknown, given twice or out of range")

// readPage reads limit, after, prefix and what else the row takes; whatever else is there is an error.
func readPage(args *fasthttp.Args, r *route) (Page, error) {
	p := Page{Limit: defaultLimit}
	seen := map[string]bool{}
	for key, value := range args.All() {
		k, v := string(key), string(value)
		if seen[k] || !r.paged || len(v) > maxArgumentBytes && (k != "after" || len(v) > maxPlaceBytes) {
			return p, errArguments
		}
		seen[k] = true
		switch k {
		case "limit":
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > maxLimit {
				return p, errArguments
			}
			p.Limit = n
		case "after":
			p.After = v
		case "prefix":
			p.Prefix = v
		default:
			if !slices.Contains(strings.Fields(r.takes), k) || p.sieve(k, v) != nil {
				return p, errArguments
			}
		}
	}
	return p, nil
}

// sieve takes an argument that says which things of a list are wanted.
func (p *Page) sieve(key, value string) (err error) {
	switch key {
	case "state":
		p.State = value
	case "tenant":
		p.Tenant = value
	case "since":
		p.Since, err = time.Parse(time.RFC3339, value)
	case "node":
		if p.AllNodes = value == "all"; !p.AllNodes {
			return errArguments
		}
	}
	return err
}

// reply asks the source and writes the answer.
func (s *Server) reply(ctx *fasthttp.RequestCtx, r *route, v Viewer, q query) {
	if r.stream && ctx.IsHead() { // which has no body to wait for
		ctx.SetContentType(eventsType)
		return
	}
	answer, err := r.answer(s, v, q)
	if err != nil {
		s.fail(ctx, r, err)
		return
	}
	switch a := answer.(type) {
	case page:
		ctx.Response.Header.Set("Content-Security-Policy", a.policy)
		ctx.SetContentType("text/html; charset=utf-8")
		ctx.SetBody(a.html)
	case text:
		ctx.SetContentType("text/plain; version=0.0.4; charset=utf-8")
		ctx.SetBodyString(string(a))
	case opened:
		if err := a.reply(ctx); err != nil {
			s.fail(ctx, r, err)
		}
	case following:
		a.reply(ctx, s.closing, s.opts.Beat)
	case health:
		status := fasthttp.StatusOK
		if len(a.Waiting) > 0 {
			status = fasthttp.StatusServiceUnavailable
		}
		writeJSON(ctx, status, a)
	default:
		writeJSON(ctx, fasthttp.StatusOK, a)
		unchanged(ctx, tagOf(ctx.Response.Body()))
	}
}

// fail answers with an error of the source. What is no fault of the request is logged.
func (s *Server) fail(ctx *fasthttp.RequestCtx, r *route, err error) {
	status, next := statusOf(err)
	if status == fasthttp.StatusInternalServerError {
		s.opts.Log.WithError(err).Errorf("inspection: %s", r.path)
	}
	refuse(ctx, status, err.Error(), next)
}

// statusOf turns a sentinel into HTTP.
func statusOf(err error) (int, string) {
	switch object.CodeOf(err) {
	case object.ErrNotFound.Code():
		return fasthttp.StatusNotFound, "look at the list it should be in"
	case object.ErrPermission.Code():
		return fasthttp.StatusForbidden, "ask as a user or with a token that may"
	case object.ErrNotSealed.Code():
		return fasthttp.StatusConflict, "ask again once it is sealed"
	case object.ErrInvalid.Code():
		return fasthttp.StatusBadRequest, "correct the request"
	case object.ErrQuota.Code(), object.ErrLimit.Code():
		return fasthttp.StatusTooManyRequests, "end others, or wait until they have ended"
	case object.ErrBusy.Code(), object.ErrTimeout.Code():
		return fasthttp.StatusServiceUnavailable, "try again"
	case object.ErrFull.Code():
		return fasthttp.StatusServiceUnavailable, "try again once there is room: delete objects, or wait until others have"
	case object.ErrNoDevice.Code():
		return fasthttp.StatusServiceUnavailable, "try again; if it stays so, look at /v1/devices and the daemon's log"
	case object.ErrUnsupported.Code():
		return fasthttp.StatusNotImplemented, "do what the detail says, or ask another node (/v1/nodes)"
	}
	return fasthttp.StatusInternalServerError, "see the daemon's log"
}

func refuse(ctx *fasthttp.RequestCtx, status int, what, next string) {
	writeJSON(ctx, status, failure{"about:blank", fasthttp.StatusMessage(status), status, what, what, next})
	ctx.SetContentType("application/problem+json")
}

// tagOf gives the entity tag of a body (RFC 9110 §8.8.3).
func tagOf(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

// unchanged sets an answer's tag, and leaves its body out where the client has it already.
func unchanged(ctx *fasthttp.RequestCtx, tag string) bool {
	ctx.Response.Header.Set(fasthttp.HeaderETag, tag)
	for _, have := range strings.Split(string(ctx.Request.Header.Peek(fasthttp.HeaderIfNoneMatch)), ",") {
		if have = strings.TrimPrefix(strings.TrimSpace(have), "W/"); have == tag || have == "*" {
			ctx.Response.ResetBody()
			ctx.SetStatusCode(fasthttp.StatusNotModified)
			return true
		}
	}
	return false
}

func writeJSON(ctx *fasthttp.RequestCtx, status int, v any) {
	ctx.Response.ResetBody()
	if json.NewEncoder(ctx.Response.BodyWriter()).Encode(v) != nil { // which writes all or nothing
		status = fasthttp.StatusInternalServerError
		ctx.SetBodyString(`{"error":"the answer cannot be written as JSON","next":"report it"}` + "\n")
	}
	ctx.SetStatusCode(status)
	ctx.SetContentType("application/json")
}

// malformed answers what is no request; the connection is closed afterwards.
func (s *Server) malformed(ctx *fasthttp.RequestCtx, err error) {
	harden(ctx)
	defer s.count(ctx)
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case errors.Is(err, fasthttp.ErrGetOnly):
		ctx.Response.Header.Set(fasthttp.HeaderAllow, "GET, HEAD")
		refuse(ctx, fasthttp.StatusMethodNotAllowed, "inspection changes nothing: GET and HEAD only",
			"use the tendril command to change things")
	case errors.As(err, &small):
		refuse(ctx, fasthttp.StatusRequestHeaderFieldsTooLarge,
			"the request's head is larger than "+strconv.Itoa(maxHeadBytes)+" bytes", "send fewer headers")
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		refuse(ctx, fasthttp.StatusRequestEntityTooLarge, "the request has a body", "GET without one")
	case errors.As(err, &timeout) && timeout.Timeout():
		refuse(ctx, fasthttp.StatusRequestTimeout, "the request did not arrive in time", "send it in one piece")
	default:
		refuse(ctx, fasthttp.StatusBadRequest, "this is no HTTP request", "GET / HTTP/1.1")
	}
}

package inspect

import (
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"tendril/store/object"
)

// Answers that are no success: what is wrong and what to do next.
type failure struct {
	Error string `json:"error"`
	Next  string `json:"next"`
}

// route is one row of the table of everything that there is.
type route struct {
	path   string
	open   bool // needs no token: holds no data
	paged  bool // takes limit, after and prefix
	scrape bool // a Scraper may ask for it
	answer func(s *Server, v Viewer, p Page) (any, error)
}

var routes = []route{
	{path: "/v1/status", answer: func(s *Server, v Viewer, _ Page) (any, error) { return s.opts.Source.Status(v) }},
	{path: "/v1/nodes", answer: func(s *Server, v Viewer, _ Page) (any, error) {
		return items(s.opts.Source.Nodes(v))
	}},
	{path: "/v1/devices", answer: func(s *Server, v Viewer, _ Page) (any, error) {
		return items(s.opts.Source.Devices(v))
	}},
	{path: "/v1/objects", paged: true, answer: func(s *Server, v Viewer, p Page) (any, error) {
		return part(s.opts.Source.Objects(v, p))
	}},
	{path: "/v1/names", paged: true, answer: func(s *Server, v Viewer, p Page) (any, error) {
		return part(s.opts.Source.Names(v, p))
	}},
	{path: "/v1/sessions", paged: true, answer: func(s *Server, v Viewer, p Page) (any, error) {
		return cut(p, func(x Session) (place, name string) {
			return padded(x.ID), x.Program
		})(s.opts.Source.Sessions(v))
	}},
	{path: "/v1/workers", answer: func(s *Server, v Viewer, _ Page) (any, error) {
		return items(s.opts.Source.Workers(v))
	}},
	{path: "/v1/segments", paged: true, answer: func(s *Server, v Viewer, p Page) (any, error) {
		return cut(p, func(x Segment) (place, name string) {
			return padded(strconv.FormatUint(x.ID, 10)), ""
		})(s.opts.Source.Segments(v))
	}},
	{path: "/v1/raft", answer: func(s *Server, v Viewer, _ Page) (any, error) { return s.opts.Source.Raft(v) }},
	{path: "/metrics", scrape: true, answer: func(s *Server, v Viewer, _ Page) (any, error) {
		m, err := s.opts.Source.Metrics(v)
		return metricsText(append(m, s.metrics()...)), err
	}},
	{path: "/", open: true, answer: func(s *Server, _ Viewer, _ Page) (any, error) { return s.index, nil }},
	{path: "/ui", open: true, answer: func(s *Server, _ Viewer, _ Page) (any, error) { return s.page, nil }},
}

// list is the form of every answer with several things.
type list[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"` // pass it as after to go on; absent at the end
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
	viewer, ok := s.viewer(ctx, d)
	if s.opts.Turn != nil {
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
	r := find(string(ctx.Path()))
	if r == nil {
		refuse(ctx, fasthttp.StatusNotFound, "there is nothing at this path", "GET / lists what there is")
		return
	}
	if !ok && r.scrape && s.opts.OpenMetrics && !d.local {
		viewer, ok = Viewer{Scraper: true}, true
	}
	if ok && viewer.Scraper && !r.open && !r.scrape {
		refuse(ctx, fasthttp.StatusForbidden, "this token is for /metrics and nothing else", "run: tendril ui")
		return
	}
	if !ok && !r.open {
		ctx.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, "Bearer")
		refuse(ctx, fasthttp.StatusUnauthorized, "this needs a token, or a user whom the daemon lets look",
			"run: tendril ui; or send Authorization: Bearer TOKEN")
		return
	}
	page, err := readPage(ctx.QueryArgs(), r.paged)
	if err != nil {
		refuse(ctx, fasthttp.StatusBadRequest, err.Error(),
			"limit is 1 to 1000; after is the next of the last answer; prefix begins a name")
		return
	}
	s.reply(ctx, r, viewer, page)
}

func find(path string) *route {
	for i := range routes {
		if routes[i].path == path {
			return &routes[i]
		}
	}
	return nil
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

// viewer says who asks; ok is false for nobody that may look.
func (s *Server) viewer(ctx *fasthttp.RequestCtx, d *door) (Viewer, bool) {
	if d.local {
		v := visitorOf(ctx.Conn())
		if v == nil || !v.known || !s.opts.AllowUID(v.uid) {
			return Viewer{}, false
		}
		return Viewer{Local: true, UID: v.uid, GID: v.gid}, true
	}
	scheme, secret, _ := strings.Cut(string(ctx.Request.Header.Peek(fasthttp.HeaderAuthorization)), " ")
	if !strings.EqualFold(scheme, "Bearer") || secret == "" {
		return Viewer{}, false
	}
	return s.opts.Bearer(strings.TrimSpace(secret))
}

var errArguments = errors.New("a query argument is unknown, given twice or out of range")

// readPage reads limit, after and prefix; whatever else is there is an error.
func readPage(args *fasthttp.Args, paged bool) (Page, error) {
	p := Page{Limit: defaultLimit}
	seen := map[string]bool{}
	for key, value := range args.All() {
		k, v := string(key), string(value)
		if seen[k] || !paged || len(v) > maxArgumentBytes {
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
			return p, errArguments
		}
	}
	return p, nil
}

// reply asks the source and writes the answer.
func (s *Server) reply(ctx *fasthttp.RequestCtx, r *route, v Viewer, p Page) {
	answer, err := r.answer(s, v, p)
	if err != nil {
		status, next := statusOf(err)
		if status == fasthttp.StatusInternalServerError {
			s.opts.Log.WithError(err).Errorf("inspection: %s", r.path)
		}
		refuse(ctx, status, err.Error(), next)
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
	default:
		writeJSON(ctx, fasthttp.StatusOK, a)
	}
}

// statusOf turns a sentinel into HTTP.
func statusOf(err error) (int, string) {
	switch object.CodeOf(err) {
	case object.ErrNotFound.Code():
		return fasthttp.StatusNotFound, "look at the list it should be in"
	case object.ErrPermission.Code():
		return fasthttp.StatusForbidden, "ask as a user or with a token that may"
	case object.ErrInvalid.Code():
		return fasthttp.StatusBadRequest, "correct the request"
	case object.ErrBusy.Code(), object.ErrTimeout.Code():
		return fasthttp.StatusServiceUnavailable, "try again"
	case object.ErrUnsupported.Code():
		return fasthttp.StatusNotImplemented, "this node does not have it"
	}
	return fasthttp.StatusInternalServerError, "see the daemon's log"
}

func refuse(ctx *fasthttp.RequestCtx, status int, what, next string) {
	writeJSON(ctx, status, failure{what, next})
}

func writeJSON(ctx *fasthttp.RequestCtx, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = fasthttp.StatusInternalServerError,
			[]byte(`{"error":"the answer cannot be written as JSON","next":"report it"}`)
	}
	ctx.SetStatusCode(status)
	ctx.SetContentType("application/json")
	ctx.SetBody(append(body, '\n'))
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

// Package inspect answers over HTTP what a node is doing: JSON under /v1, Prometheus text under /metrics, and a page
// under /ui that shows it to people. It changes nothing: GET and HEAD are all there is.
//
// Two doors. On a unix socket the kernel says who asks (SO_PEERCRED) and AllowUID decides. On TCP every request but the
// page itself (which holds no data) needs a bearer token; the Host header must name this node, so that a page on
// another site cannot reach it through a name of its own (DNS rebinding); requests that a browser says come from
// another site are refused, and no other origin is ever allowed in.
//
// Trust: nobody who asks. Head, body, time and number of connections are bounded (the constants below); a request that
// is not understood gets a JSON error that says what to do, or its connection closed.
//
// Goroutines: one a listener and one a connection, all joined by Close. Locks: doorway.mu (open connections), a leaf.
package inspect

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/valyala/fasthttp"

	"tendril/store/object"
)

// Limits. fasthttp's own defaults are "unlimited" for most of them.
const (
	maxHeadBytes       = 8 << 10 // request line and headers
	maxConnections     = 256     // each door
	maxConnectionsPeer = 32      // of one address, or of one user
	maxRequestsConn    = 10000   // then the connection is closed
	writeTimeout       = 15 * time.Second
	idleTimeout        = 60 * time.Second
	closeGrace         = 2 * time.Second // what Close leaves to answers under way
	maxUnixPathBytes   = 107             // sun_path less its terminator, unix(7)
)

// Options says where and for whom. Zero values mean what the comments name.
type Options struct {
	Unix  string   // path of the unix socket; "" = none
	TCP   string   // host:port; "" = none
	Hosts []string // names that clients may use for this node besides localhost and the addresses it listens on

	// AllowUID says which users may ask over the unix socket; nil = the daemon's own and root.
	AllowUID func(uid uint32) bool
	// Bearer says who shows this secret, or why it is good for nothing, in words for whoever showed it; needed for TCP.
	// It must take as long for each wrong one, as far as that tells of right ones.
	Bearer func(secret string) (Viewer, error)
	// OpenMetrics says that /metrics over TCP needs no secret. Only for a listener on loopback.
	OpenMetrics bool

	// Turn waits until there is a turn for a request of the viewer's, the zero Viewer for nobody's, and gives what ends
	// it; nil = all are answered at once.
	Turn func(Viewer) (over func())

	Source      Source
	Log         logrus.FieldLogger // nil = no log
	ReadTimeout time.Duration      // for a whole request to arrive; 0 = 5 s
	Beat        time.Duration      // of a stream without events, after which something is written; 0 = 15 s
	closeGrace  time.Duration      // the constant of this name; tests have others
}

// Validate names every fault.
func (o Options) Validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(o.Unix == "" && o.TCP == "", "inspection needs a unix socket or a TCP address")
	fault(o.Unix != "" && (!filepath.IsAbs(o.Unix) || len(o.Unix) > maxUnixPathBytes),
		"inspection socket %q is not an absolute path of at most %d bytes", o.Unix, maxUnixPathBytes)
	if o.TCP != "" {
		_, _, err := net.SplitHostPort(o.TCP)
		fault(err != nil, "inspection address %q: %v", o.TCP, err)
		fault(o.Bearer == nil, "inspection over TCP needs tokens")
		host, _, _ := net.SplitHostPort(o.TCP)
		ip := net.ParseIP(host)
		fault(o.OpenMetrics && host != "localhost" && (ip == nil || !ip.IsLoopback()),
			"metrics without a key on %q, which is not loopback", o.TCP)
	}
	fault(o.Source == nil, "inspection needs a source")
	fault(o.ReadTimeout < 0 || o.ReadTimeout > time.Minute, "read timeout %v is not between 0 and 1m", o.ReadTimeout)
	if len(faults) > 0 {
		return fmt.Errorf("%w: %w", object.ErrInvalid, errors.Join(faults...))
	}
	return nil
}

// NewSecret draws a token for Options.Bearer: the text for its holder, and the hash to keep.
func NewSecret() (text string, hash [32]byte, err error) {
	var b [20]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", hash, err
	}
	text = strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
	return text, HashSecret(text), nil
}

// HashSecret gives the hash of a token's text.
func HashSecret(text string) [32]byte { return sha256.Sum256([]byte(text)) }

// Server is a running inspection service.
type Server struct {
	opts  Options
	page  page
	index any // the answer at /

	document any             // the answer at /v1/openapi.json
	hosts    map[string]bool // what a Host header may say, with port
	doors    []*door
	wg       sync.WaitGroup
	once     sync.Once

	closing  chan struct{}      // closed by Close: streams of events end
	answered [600]atomic.Uint64 // by status
}

// door is one listener with its HTTP server.
type door struct {
	local   bool // unix socket
	way     *doorway
	http    *fasthttp.Server
	address net.Addr
}

// Start listens and serves. Errors: ErrInvalid; ErrBusy where the port or socket is taken; what the kernel says.
func Start(opts Options) (*Server, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.Log == nil {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		opts.Log = quiet
	}
	if opts.ReadTimeout == 0 {
		opts.ReadTimeout = 5 * time.Second
	}
	if opts.Beat == 0 {
		opts.Beat = eventsBeat
	}
	if opts.AllowUID == nil {
		own := uint32(os.Geteuid())
		opts.AllowUID = func(uid uint32) bool { return uid == 0 || uid == own }
	}
	s := &Server{opts: opts, page: buildPage(), index: index(), document: openAPI(), hosts: map[string]bool{},
		closing: make(chan struct{})}
	if err := s.listen(); err != nil {
		for _, d := range s.doors {
			d.way.Close()
		}
		return nil, err
	}
	for _, d := range s.doors {
		s.wg.Go(func() { s.serve(d) })
	}
	return s, nil
}

// serve takes connections until the door is closed. fasthttp's own loop would leave a goroutine that sleeps on after
// the end.
func (s *Server) serve(d *door) {
	for {
		c, err := d.way.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely
			s.opts.Log.WithError(err).Warnf("inspection on %s cannot accept a connection", d.address)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s.wg.Go(func() {
			defer c.Close()
			_ = d.http.ServeConn(c) // what strangers do wrong is no news
		})
	}
}

func (s *Server) listen() error {
	if s.opts.Unix != "" {
		l, err := listenUnix(s.opts.Unix)
		if err != nil {
			return err
		}
		s.add(l, true)
	}
	if s.opts.TCP != "" {
		l, err := net.Listen("tcp", s.opts.TCP)
		if err != nil {
			return fmt.Errorf("%w: inspection: %w: choose another port", object.ErrBusy, err)
		}
		s.add(l, false)
		s.allowHosts(l.Addr().(*net.TCPAddr))
	}
	return nil
}

func (s *Server) add(l net.Listener, local bool) {
	d := &door{local: local, way: &doorway{Listener: l, open: map[*visitor]struct{}{}, from: map[string]int{}},
		address: l.Addr()}
	d.http = &fasthttp.Server{
		Handler:                      func(ctx *fasthttp.RequestCtx) { s.handle(ctx, d) },
		ErrorHandler:                 s.malformed,
		Logger:                       quietLogger{s.opts.Log},
		Concurrency:                  2 * maxConnections, // those that gave their place up are counted until they end
		MaxRequestsPerConn:           maxRequestsConn,
		ReadBufferSize:               maxHeadBytes,
		MaxRequestBodySize:           1, // GET has none; 0 would mean 4 MiB
		ReadTimeout:                  s.opts.ReadTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		GetOnly:                      true,
		DisablePreParseMultipartForm: true,
		SecureErrorLogMessage:        true,
		NoDefaultServerHeader:        true,
		NoDefaultDate:                true, // its clock goroutine would outlive the server
		ConnState:                    watch,
		CloseOnShutdown:              true,
	}
	s.doors = append(s.doors, d)
}

// allowHosts fills in what a Host header may say.
func (s *Server) allowHosts(a *net.TCPAddr) {
	names := append([]string{"localhost", "127.0.0.1", "::1"}, s.opts.Hosts...)
	if !a.IP.IsUnspecified() {
		names = append(names, a.IP.String())
	}
	for _, n := range names {
		n = strings.ToLower(strings.Trim(n, "[]"))
		s.hosts[net.JoinHostPort(n, fmt.Sprint(a.Port))] = true
		if a.Port == 80 {
			s.hosts[n] = true
		}
	}
}

// Address gives the TCP address that is listened on; nil where there is none.
func (s *Server) Address() net.Addr {
	for _, d := range s.doors {
		if !d.local {
			return d.address
		}
	}
	return nil
}

// URL gives the page's address with a token in the fragment, which browsers keep to themselves; "" without TCP.
func (s *Server) URL(secret string) string {
	a, ok := s.Address().(*net.TCPAddr)
	if !ok {
		return ""
	}
	host := a.IP.String()
	if a.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, fmt.Sprint(a.Port)) + "/ui#token=" + secret
}

// Close stops listening, gives answers under way closeGrace to end, closes every connection and joins every goroutine.
// Idempotent.
func (s *Server) Close() error {
	s.once.Do(func() {
		close(s.closing)
		for _, d := range s.doors {
			d.way.Close()
		}
		late := time.AfterFunc(cmp.Or(s.opts.closeGrace, closeGrace), func() {
			for _, d := range s.doors {
				d.way.hangUp()
			}
		})
		s.wg.Wait()
		late.Stop()
	})
	return nil
}

// quietLogger has fasthttp's complaints, which strangers can cause, come out at debug level.
type quietLogger struct{ log logrus.FieldLogger }

func (q quietLogger) Printf(format string, args ...any) { q.log.Debugf("inspection: "+format, args...) }

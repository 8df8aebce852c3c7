package inspect

import (
	"encoding/json"
	"io"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"tendril/daemon/changes"
)

// Times and bounds of a stream of events.
const (
	eventsPause  = 100 * time.Millisecond // between two writes: what comes meanwhile goes together
	eventsBeat   = 15 * time.Second       // without an event, after which something is written all the same
	eventsLife   = 10 * time.Minute       // then the client comes back, and shows its key again
	eventsWrite  = 32 << 10               // bytes of one write, but for one event that is larger
	eventsType   = "text/event-stream"
	eventsReturn = "retry: 1000\n" // ms, after which a client whose stream has ended comes back
)

// missedSome is the data of an event in place of those that a client missed.
var missedSome, _ = json.Marshal(Event{Change: "missed",
	Look: []string{"/v1/objects", "/v1/names", "/v1/sessions", "/v1/leases", "/v1/nodes"}})

// following is who is about to be sent events.
type following struct {
	reader *changes.Reader
	done   func()
}

// reply sends events (HTML, server-sent events) until the client goes, eventsLife is over, or stop is closed.
func (f following) reply(ctx *fasthttp.RequestCtx, stop <-chan struct{}, beat time.Duration) {
	ctx.SetContentType(eventsType)
	ctx.Response.Header.Set("X-Accel-Buffering", "no") // proxies: pass each on at once
	s := &events{following: f, conn: ctx.Conn(), stop: stop, beat: beat, until: time.Now().Add(eventsLife)}
	s.unsent = append(s.unsent, eventsReturn+"id: "+f.reader.Place()+"\n\n"...)
	ctx.SetBodyStream(s, -1)
}

// events is a stream of them as a body that fasthttp reads and sends.
type events struct {
	following
	conn   net.Conn
	stop   <-chan struct{}
	until  time.Time
	beat   time.Duration
	unsent []byte
}

// Read waits for something to send. What Read gives is sent before it is called again.
func (s *events) Read(b []byte) (int, error) {
	if len(s.unsent) == 0 {
		select {
		case <-time.After(eventsPause):
		case <-s.stop:
			return 0, io.EOF
		}
		if !s.gather() {
			return 0, io.EOF
		}
	}
	n := copy(b, s.unsent)
	s.unsent = s.unsent[n:]
	return n, s.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
}

// gather fills unsent; false: the stream has ended.
func (s *events) gather() bool {
	if time.Now().After(s.until) {
		return false
	}
	c, ok, over := s.reader.Next(s.stop, s.beat)
	select {
	case <-s.stop:
		return false
	default:
	}
	if over {
		return false
	}
	if s.unsent = s.unsent[:0]; !ok {
		s.unsent = append(s.unsent, ":\n\n"...)
		return true
	}
	for ok && len(s.unsent) < eventsWrite {
		if c.Kind == changes.Missed {
			c.Data = missedSome
		}
		s.unsent = append(s.unsent, "id: "+c.Place+"\nevent: "+c.Kind+"\ndata: "...)
		s.unsent = append(append(s.unsent, c.Data...), "\n\n"...)
		if len(s.unsent) < eventsWrite {
			c, ok, _ = s.reader.Next(nil, 0)
		}
	}
	return true
}

// Close lets the reader go.
func (s *events) Close() error {
	s.done()
	return nil
}

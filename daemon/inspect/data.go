package inspect

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// opened is an object whose bytes are about to be sent.
type opened struct {
	id   object.ID
	data Data
}

// reply sends the object, or the range that was asked for (RFC 9110 §14). Several ranges, or one that is malformed, are
// answered with the whole object, as §14.2 allows. The bytes of a sealed object never change, so its tag is its id. An
// error says that the first of them cannot be had, and nothing is answered yet.
func (o opened) reply(ctx *fasthttp.RequestCtx) error {
	h := &ctx.Response.Header
	h.Set(fasthttp.HeaderAcceptRanges, "bytes")
	h.Set(fasthttp.HeaderContentDisposition, `attachment; filename="`+o.id.String()+`"`)
	tag := `"` + o.id.String() + `"`
	if unchanged(ctx, tag) {
		o.data.Close()
		return nil
	}
	size := o.data.Size()
	from, n, partial := uint64(0), size, false
	ranges := string(ctx.Request.Header.Peek(fasthttp.HeaderRange))
	if since := string(ctx.Request.Header.Peek(fasthttp.HeaderIfRange)); since == "" || since == tag {
		var fits bool
		if from, n, partial, fits = rangeOf(ranges, size); !fits {
			o.data.Close()
			h.Set(fasthttp.HeaderContentRange, fmt.Sprintf("bytes */%d", size))
			refuse(ctx, fasthttp.StatusRequestedRangeNotSatisfiable,
				fmt.Sprintf("range %.60q of %d bytes", ranges, size), "ask for bytes that are there")
			return nil
		}
	}
	d := &download{data: o.data, conn: ctx.Conn(), at: from, left: n}
	if !ctx.IsHead() { // from then on it is too late to say that the disk or the device fails
		var err error
		if d.first, err = o.data.Range(from, min(n, ChunkBytes)); err != nil {
			o.data.Close()
			h.Del(fasthttp.HeaderETag)
			h.Del(fasthttp.HeaderContentDisposition)
			return err
		}
	}
	ctx.SetContentType("application/octet-stream")
	if partial {
		ctx.SetStatusCode(fasthttp.StatusPartialContent)
		h.Set(fasthttp.HeaderContentRange, fmt.Sprintf("bytes %d-%d/%d", from, from+n-1, size))
	}
	ctx.SetBodyStream(d, int(n))
	return nil
}

// rangeOf reads a Range header of one range. partial: it is good, and n bytes from off on are meant. fits is false
// where it names no byte of the object.
func rangeOf(header string, size uint64) (off, n uint64, partial, fits bool) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(spec, "-")
	if !ok || !dash {
		return 0, size, false, true
	}
	from, err := strconv.ParseUint(first, 10, 63)
	to, errTo := strconv.ParseUint(last, 10, 63)
	switch {
	case first == "" && errTo == nil: // the last bytes
		if to == 0 || size == 0 {
			return 0, 0, false, false
		}
		n = min(to, size)
		return size - n, n, true, true
	case err != nil || last != "" && (errTo != nil || to < from):
		return 0, size, false, true
	case from >= size:
		return 0, 0, false, false
	case last == "" || to >= size:
		to = size - 1
	}
	return from, to - from + 1, true, true
}

// download is an object on its way. Each chunk has writeTimeout: who reads on may take as long as the object is large.
type download struct {
	data     Data
	conn     net.Conn
	at, left uint64
	first    []byte // the first chunk, until it is sent; nil: it is to be read

	memory *os.File        // has the object, from base on; nil: Range is asked
	base   uint64          // where in memory it begins
	socket syscall.RawConn // conn's
}

// chunk gives the next bytes, at most n.
func (d *download) chunk(n uint64) (b []byte, err error) {
	if b, d.first = d.first, nil; b != nil {
		return b[:min(n, uint64(len(b)))], nil
	}
	return d.data.Range(d.at, n)
}

// SupportsBodyWriteTo has fasthttp call WriteTo.
func (d *download) SupportsBodyWriteTo() bool { return true }

// WriteTo writes what is left to the connection itself, past w, which it flushes: the kernel copies each chunk once, or
// not at all where it lies in memory that a socket can have.
func (d *download) WriteTo(w io.Writer) (written int64, err error) {
	if b, ok := w.(*bufio.Writer); ok {
		if err := b.Flush(); err != nil {
			return 0, err
		}
		w = d.conn
		over := d.lend()
		defer func() { over(err) }()
	}
	for d.left > 0 {
		if err := d.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return written, err
		}
		n, err := d.next(w)
		d.at, d.left, written = d.at+n, d.left-n, written+int64(n)
		if err != nil {
			return written, err
		}
		if v := visitorOf(d.conn); v != nil {
			v.answers() // it reads on: it is not who gives its place up
		}
	}
	return written, nil
}

// next writes a chunk.
func (d *download) next(w io.Writer) (n uint64, err error) {
	want := min(d.left, ChunkBytes)
	if d.memory != nil {
		if n, err = d.sendfile(want, min(d.left, sendfileBytes)); n > 0 || !refuses(err) {
			d.first = nil
			return n, err
		}
		d.memory = nil
	}
	chunk, err := d.chunk(want)
	if err != nil {
		return 0, err
	}
	k, err := w.Write(chunk)
	return uint64(k), err
}

// lend has what is left sent from the object's memory, where the connection takes it from there and it is more than a
// chunk. Until over, which is told how that ended, a connection that is closed forgets what it has not sent: it would
// keep the memory of an object that may be gone.
func (d *download) lend() (over func(error)) {
	over = func(error) {}
	c := d.conn
	if v := visitorOf(c); v != nil {
		c = v.Conn
	}
	socket, ok := c.(syscall.Conn)
	if !ok || d.left <= ChunkBytes {
		return over
	}
	var err error
	if d.socket, err = socket.SyscallConn(); err != nil {
		return over
	}
	if d.memory, d.base = d.data.Memory(); d.memory == nil {
		return over
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok || tcp.SetLinger(0) != nil {
		return over
	}
	return func(err error) {
		if err == nil {
			_ = tcp.SetLinger(-1) // closed meanwhile, if that fails
		}
	}
}

// sendfileBytes is what one call is asked to send: with four times as many calls the reader is woken more often.
const sendfileBytes = 4 * ChunkBytes

// sendfile sends at least so many bytes from the object's memory and most at most, or less and an error.
func (d *download) sendfile(least, most uint64) (sent uint64, err error) {
	off := int64(d.base + d.at)
	for sent < least && err == nil {
		var k int
		wait := d.socket.Write(func(socket uintptr) (done bool) {
			k, err = unix.Sendfile(int(socket), int(d.memory.Fd()), &off, int(most-sent))
			return !errors.Is(err, unix.EAGAIN)
		})
		switch {
		case wait != nil:
			return sent, wait
		case errors.Is(err, unix.EINTR):
			err = nil
		case err == nil && k <= 0:
			err = io.ErrUnexpectedEOF // it cannot shrink
		}
		sent += uint64(max(k, 0))
	}
	return sent, err
}

// refuses reports whether the kernel does not send this memory, or not into this socket.
func refuses(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP)
}

// Read is for readers that do not know WriteTo.
func (d *download) Read(b []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	chunk, err := d.chunk(min(d.left, ChunkBytes, uint64(len(b))))
	n := copy(b, chunk)
	d.at, d.left = d.at+uint64(n), d.left-uint64(n)
	return n, err
}

// Close ends reading.
func (d *download) Close() error {
	d.data.Close()
	return nil
}

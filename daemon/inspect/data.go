package inspect

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

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

// WriteTo writes what is left to the connection itself, past w, which it flushes: the kernel copies each chunk once.
func (d *download) WriteTo(w io.Writer) (written int64, err error) {
	if b, ok := w.(*bufio.Writer); ok {
		if err := b.Flush(); err != nil {
			return 0, err
		}
		w = d.conn
	}
	for d.left > 0 {
		if err := d.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return written, err
		}
		chunk, err := d.chunk(min(d.left, ChunkBytes))
		if err != nil {
			return written, err
		}
		n, err := w.Write(chunk)
		d.at, d.left, written = d.at+uint64(n), d.left-uint64(n), written+int64(n)
		if err != nil {
			return written, err
		}
		if v := visitorOf(d.conn); v != nil {
			v.answers() // it reads on: it is not who gives its place up
		}
	}
	return written, nil
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

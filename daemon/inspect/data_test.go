package inspect

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"tendril/store/object"
)

func TestRangeOf(t *testing.T) {
	for header, want := range map[string][4]uint64{ // off, n, partial, fits
		"":                             {0, 10, 0, 1},
		"bytes=0-9":                    {0, 10, 1, 1},
		"bytes=3-3":                    {3, 1, 1, 1},
		"bytes=3-":                     {3, 7, 1, 1},
		"bytes=8-100":                  {8, 2, 1, 1},
		"bytes=-4":                     {6, 4, 1, 1},
		"bytes=-40":                    {0, 10, 1, 1},
		"bytes=-0":                     {0, 0, 0, 0},
		"bytes=10-":                    {0, 0, 0, 0},
		"bytes=10-12":                  {0, 0, 0, 0},
		"bytes=5-3":                    {0, 10, 0, 1},
		"bytes=0-1,3-4":                {0, 10, 0, 1},
		"bytes=-":                      {0, 10, 0, 1},
		"bytes=a-b":                    {0, 10, 0, 1},
		"bytes=+1-2":                   {0, 10, 0, 1},
		"lines=0-1":                    {0, 10, 0, 1},
		"bytes=0-99999999999999999999": {0, 10, 0, 1},
	} {
		off, n, partial, fits := rangeOf(header, 10)
		yes := func(b bool) uint64 {
			if b {
				return 1
			}
			return 0
		}
		if got := [4]uint64{off, n, yes(partial), yes(fits)}; got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
	if _, _, _, fits := rangeOf("bytes=-5", 0); fits {
		t.Error("there are last bytes of nothing")
	}
}

// Bytes that cannot be read are an error of the answer, which is logged where it is no fault of the request.
func TestDataThatCannotBeRead(t *testing.T) {
	for code, err := range map[int]error{http.StatusInternalServerError: errors.New("the disk fails"),
		http.StatusTooManyRequests: object.ErrQuota} {
		log, logged := logtest.NewNullLogger()
		data := &bytesOf{b: []byte("hello"), err: err}
		_, address, secret := start(t, func(o *Options) { o.Log, o.Source = log, &fake{data: data} })
		path := "/v1/objects/00112233445566778899aabbccddeeff/data"
		r := raw(t, "tcp", address, get(path, address, "Authorization: Bearer "+secret))
		if r == nil || r.StatusCode != code || data.closed.Load() != 1 {
			t.Errorf("%v: %+v, closed %d times", err, r, data.closed.Load())
		}
		if n := len(logged.AllEntries()); (n == 1) != (code == http.StatusInternalServerError) {
			t.Errorf("%v: %d lines of the log", err, n)
		}
	}
}

// Whatever a Range header says, what is sent lies in the object.
func FuzzRangeOf(f *testing.F) {
	for _, header := range []string{"bytes=0-9", "bytes=-4", "bytes=3-", "bytes=0-1,3-4", "bytes=18446744073709551615-"} {
		f.Add(header, uint64(10))
	}
	f.Fuzz(func(t *testing.T, header string, size uint64) {
		off, n, partial, fits := rangeOf(header, size)
		if fits && (off > size || n > size-off || partial && n == 0 || !partial && n != size) {
			t.Errorf("%q of %d: [%d, +%d)", header, size, off, n)
		}
	})
}

// memoryWith gives a memfd that has b from at on.
func memoryWith(t *testing.T, b []byte, at int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("data", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "data")
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestData: what is answered is the same where the kernel sends an object's memory, where it does not, and where there
// is none.
func TestData(t *testing.T) {
	whole := make([]byte, 3*ChunkBytes+17)
	for i := range whole {
		whole[i] = byte(i) + byte(i>>11)
	}
	t.Run("read", func(t *testing.T) { testData(t, whole, &bytesOf{b: whole}) })
	t.Run("memory", func(t *testing.T) {
		first := make([]byte, len(whole)) // what is read of a whole chunk is not what is sent
		testData(t, whole, &bytesOf{b: first, file: memoryWith(t, whole, 64), at: 64, small: whole})
	})
	t.Run("not sent", func(t *testing.T) { // a directory is nothing that sendfile reads
		f, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		testData(t, whole, &bytesOf{b: whole, file: f})
	})
}

func testData(t *testing.T, whole []byte, data *bytesOf) {
	s, address, secret := start(t, func(o *Options) { o.Source = &fake{data: data} })
	id := object.NewID()
	path, tag := "/v1/objects/"+id.String()+"/data", `"`+id.String()+`"`
	asked := int32(0)
	for _, x := range []struct {
		what    string
		headers []string
		status  int
		want    []byte
	}{
		{"all", nil, 200, whole},
		{"a range", []string{"Range: bytes=1048575-2097153"}, 206, whole[1048575:2097154]},
		{"the end", []string{"Range: bytes=-17"}, 206, whole[len(whole)-17:]},
		{"beyond", []string{"Range: bytes=99999999-"}, 416, nil},
		{"had", []string{"If-None-Match: " + tag}, 304, []byte{}},
		{"had another", []string{`If-None-Match: "x"`}, 200, whole},
		{"a range of this one", []string{"Range: bytes=0-0", "If-Range: " + tag}, 206, whole[:1]},
		{"a range of another", []string{"Range: bytes=0-0", `If-Range: "x"`}, 200, whole},
	} {
		for _, local := range []bool{false, true} {
			network, to := "tcp", address
			if local {
				network, to = "unix", s.opts.Unix
			}
			asked++
			r := raw(t, network, to, get(path, address, append(x.headers, "Authorization: Bearer "+secret)...))
			if r == nil || r.StatusCode != x.status {
				t.Fatalf("%s: %+v", x.what, r)
			}
			body, _ := io.ReadAll(r.Body)
			if x.want != nil && !bytes.Equal(body, x.want) {
				t.Errorf("%s: %d bytes, want %d, or others", x.what, len(body), len(x.want))
			}
			if x.status < 300 && r.Header.Get("Content-Disposition") == "" {
				t.Errorf("%s: a browser would show it: %v", x.what, r.Header)
			}
		}
	}
	asked++
	if r := raw(t, "tcp", address, "HEAD "+get(path, address, "Authorization: Bearer "+secret)[4:]); r == nil ||
		r.StatusCode != 200 || r.ContentLength != int64(len(whole)) {
		t.Errorf("HEAD: %+v", r)
	}
	for deadline := time.Now().Add(5 * time.Minute); data.closed.Load() != asked && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // Pause: an answer's last byte comes before its end
	}
	if n := data.closed.Load(); n != asked {
		t.Errorf("%d of %d readings are closed", n, asked)
	}
}

// A reader that stops reading ends with the server, and what it read is closed.
func TestDataThatNobodyReads(t *testing.T) {
	zeros := make([]byte, 64<<20)
	t.Run("read", func(t *testing.T) { testNobodyReads(t, &bytesOf{b: zeros}) })
	t.Run("memory", func(t *testing.T) { testNobodyReads(t, &bytesOf{b: zeros, file: memoryWith(t, zeros, 0)}) })
}

func testNobodyReads(t *testing.T, data *bytesOf) {
	s, address, secret := start(t, func(o *Options) { o.Source = &fake{data: data} })
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, get("/v1/objects/"+object.NewID().String()+"/data", address, "Authorization: Bearer "+secret))
	if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if data.closed.Load() != 1 {
		t.Error("it is still being read")
	}
}

func TestUnchangedAnswers(t *testing.T) {
	_, address, secret := start(t, nil)
	bearer := "Authorization: Bearer " + secret
	tag := raw(t, "tcp", address, get("/v1/objects", address, bearer)).Header.Get(fasthttp.HeaderETag)
	if tag == "" {
		t.Fatal("no tag")
	}
	for header, status := range map[string]int{tag: 304, `"x", W/` + tag: 304, `"x"`: 200} {
		if r := raw(t, "tcp", address, get("/v1/objects", address, bearer, "If-None-Match: "+header)); r == nil ||
			r.StatusCode != status {
			t.Errorf("If-None-Match: %s: %+v", header, r)
		}
	}
}

func TestHealth(t *testing.T) {
	f := &fake{waiting: []string{"a leader"}}
	_, address, _ := start(t, func(o *Options) { o.Source = f })
	for path, status := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
		if r := raw(t, "tcp", address, get(path, address)); r == nil || r.StatusCode != status {
			t.Errorf("%s of a node that waits: %+v", path, r)
		}
	}
	f.waiting = nil
	if r := raw(t, "tcp", address, get("/readyz", address)); r == nil || r.StatusCode != 200 {
		t.Errorf("a node that waits for nothing: %+v", r)
	}
}

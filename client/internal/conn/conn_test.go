package conn_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"tendril/client/internal/conn"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// model answers requests from a list; what else a Conn does is in no call here.
type model struct {
	conn.Conn
	answers []any // a Payload's bytes, or an error
	asked   []wire.Type
}

func (m *model) Ask(_ context.Context, kind wire.Type, _ ipc.Payload) (conn.Reply, error) {
	m.asked = append(m.asked, kind)
	if len(m.answers) == 0 {
		return conn.Reply{}, errors.New("asked for more")
	}
	next := m.answers[0]
	m.answers = m.answers[1:]
	switch next := next.(type) {
	case error:
		return conn.Reply{}, next
	case *wire.PageReply:
		return conn.Reply{Payload: next.Append(nil)}, nil
	}
	return conn.Reply{Payload: []byte(next.(string))}, nil
}

func page(next, items string) *wire.PageReply {
	return &wire.PageReply{Next: next, Items: []byte(items)}
}

// TestListing: a page is asked for when the one before is used up, and a daemon that knows no pages for the whole; an
// error ends the listing behind what came.
func TestListing(t *testing.T) {
	unsupported := fmt.Errorf("%w: an older daemon", object.ErrUnsupported)
	for name, x := range map[string]struct {
		answers []any
		old     wire.Type
		want    []int
		err     string
		asked   int
	}{
		"one page":                   {[]any{page("", "[1,2]")}, wire.Tokens, []int{1, 2}, "", 1},
		"none":                       {[]any{page("", "[]")}, wire.Tokens, nil, "", 1},
		"pages":                      {[]any{page("a", "[1]"), page("b", "[]"), page("", "[2]")}, 0, []int{1, 2}, "", 3},
		"an older daemon":            {[]any{unsupported, "[4,5]"}, wire.Tokens, []int{4, 5}, "", 2},
		"one that has no such thing": {[]any{unsupported}, 0, nil, "an older daemon", 1},
		"older in the middle":        {[]any{page("a", "[1]"), unsupported}, wire.Tokens, []int{1}, "an older daemon", 2},
		"a page that leads nowhere":  {[]any{page("a", "[1]"), page("a", "[2]")}, 0, []int{1, 2}, "ends where it begins", 2},
		"no JSON":                    {[]any{page("", "x")}, 0, nil, "reply", 1},
		"no page":                    {[]any{"x"}, 0, nil, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := &model{answers: x.answers}
			var got []int
			var failed error
			for n, err := range conn.Listing[int](t.Context(), m, wire.TokenPage, conn.Prefixed("p"), x.old, nil) {
				if failed != nil {
					t.Error("more after an error")
				}
				if failed = err; err == nil {
					got = append(got, n)
				}
			}
			fails := x.err != "" || name == "no page"
			if (failed != nil) != fails || fails && !strings.Contains(failed.Error(), x.err) {
				t.Errorf("%v, want %q", failed, x.err)
			}
			if !slices.Equal(got, x.want) || len(m.asked) != x.asked {
				t.Errorf("%v after %v, want %v after %d requests", got, m.asked, x.want, x.asked)
			}
		})
	}
}

// TestListingStops: who breaks off asks for no more pages.
func TestListingStops(t *testing.T) {
	m := &model{answers: []any{page("a", "[1,2]")}}
	for range conn.Listing[int](t.Context(), m, wire.TokenPage, conn.Prefixed(""), 0, nil) {
		break
	}
	if len(m.asked) != 1 {
		t.Errorf("asked %v", m.asked)
	}
}

func TestCollect(t *testing.T) {
	m := &model{answers: []any{page("a", "[1]"), errors.New("gone")}}
	if list, err := conn.Collect(conn.Listing[int](t.Context(), m, wire.TokenPage, conn.Prefixed(""), 0,
		nil)); list != nil || err == nil {
		t.Errorf("%v, %v", list, err)
	}
}

// TestReplyClose: what a caller took stays open.
func TestReplyClose(t *testing.T) {
	taken, left, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	kept, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	defer other.Close()
	r := conn.Reply{}
	r.Files[0], r.Files[1] = other, left
	r.Files[0] = nil // the caller took it
	r.Close()
	r.Close()
	if _, err := taken.Read(make([]byte, 1)); err == nil {
		t.Error("the other end is open")
	}
	if _, err := other.Write([]byte{1}); err != nil {
		t.Errorf("what the caller took: %v", err)
	}
	if r.Files[1] != nil {
		t.Error("a closed file is still there")
	}
}

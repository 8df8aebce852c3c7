package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

func TestParseLease(t *testing.T) {
	for text, want := range map[string]string{"1": "{1   false false false}", "12": "{12   false false false}",
		"all": "{0   false false false}", "node": "{0   false true false}", "token:abc": "{0  abc false false false}"} {
		if o, err := Parse(text); err != nil || fmt.Sprint(*o) != want {
			t.Errorf("%q: %v, %v", text, o, err)
		}
	}
	if o, err := Parse(""); o != nil || err != nil {
		t.Errorf("%v, %v", o, err)
	}
	for _, bad := range []string{"0", "-1", "1.5", "5000", "token:", "one", "token:" + fmt.Sprintf("%065d", 0)} {
		if o, err := Parse(bad); err == nil {
			t.Errorf("%q is %v", bad, *o)
		}
	}
}

// Who waits asks again with one ticket until it is served; who does not asks once, and so does who gets another error.
func TestOpenLeased(t *testing.T) {
	var tickets []string
	left := "none"
	answers := []error{object.ErrBusy, object.ErrBusy, nil}
	open := func(options []byte) ([]byte, error) {
		var o clwire.SessionOptions
		if err := json.Unmarshal(options, &o); err != nil {
			t.Fatal(err)
		}
		if tickets = append(tickets, o.Lease.Ticket); o.Lease.Leave {
			left = o.Lease.Ticket
		}
		err := answers[0]
		if answers = answers[1:]; err != nil {
			return nil, err
		}
		return json.Marshal(clwire.Snapshot{Lease: &clwire.LeaseSnapshot{Number: 5}})
	}
	var said []string
	say := func(line string) { said = append(said, line) }
	o := clwire.SessionOptions{Lease: &clwire.LeaseOptions{Count: 1}}
	s, err := Open(open, o, time.Hour, say)
	if err != nil || s.Lease.Number != 5 || len(tickets) != 3 || tickets[0] == "" || o.Lease.Ticket != "" ||
		len(slices.Compact(tickets)) != 1 || len(said) != 1 {
		t.Errorf("%v, %v, tickets %q, said %q", s, err, tickets, said)
	}
	for patience, wrong := range map[time.Duration]error{0: object.ErrBusy, time.Hour: object.ErrNoDevice} {
		answers, tickets = []error{wrong}, nil
		_, err := Open(open, o, patience, say)
		if !errors.Is(err, wrong) || (tickets[0] == "") != (patience == 0) {
			t.Errorf("%v, tickets %q", err, tickets)
		}
	}
	answers, tickets = []error{object.ErrBusy, object.ErrBusy}, nil
	if _, err := Open(open, o, 1, say); !errors.Is(err, object.ErrBusy) || len(tickets) != 2 || left != tickets[1] {
		t.Errorf("who waits no longer: %v, tickets %q, left %q", err, tickets, left)
	}
	old := func([]byte) ([]byte, error) { return []byte("{}"), nil }
	if _, err := Open(old, o, 0, say); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("a daemon that knows no leases: %v", err)
	}
	if _, err := Open(old, clwire.SessionOptions{}, 0, say); err != nil {
		t.Error(err)
	}
}

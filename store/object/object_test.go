package object

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestIDRoundTrip(t *testing.T) {
	id := NewID()
	if id.IsZero() || id == NewID() {
		t.Fatal("NewID gave a zero or repeated ID")
	}
	back, err := ParseID(id.String())
	if err != nil || back != id {
		t.Fatalf("ParseID(%s) = %v, %v", id, back, err)
	}
	for _, bad := range []string{"", "xyz", id.String()[1:], id.String() + "0", "zz" + id.String()[2:]} {
		if _, err := ParseID(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("ParseID(%q) = %v, want ErrInvalid", bad, err)
		}
	}
}

func TestErrorsKeepTheirIdentityAcrossTheWire(t *testing.T) {
	for code, s := range sentinels {
		if s == nil && code > 16 {
			continue // numbers kept free
		}
		if code == 0 {
			continue
		}
		if int(s.Code()) != code {
			t.Errorf("%v stands at %d and says %d", s, code, s.Code())
		}
		sent := fmt.Errorf("outer: %w", fmt.Errorf("%w: value 7", s))
		got := FromCode(CodeOf(sent), sent.Error())
		if !errors.Is(got, s) || got.Error() != sent.Error() || CodeOf(got) != s.Code() {
			t.Errorf("%v came back as %v", sent, got)
		}
	}
	if CodeOf(nil) != 0 || FromCode(0, "x") != nil {
		t.Error("no error must travel as 0")
	}
	if !errors.Is(FromCode(999, "new"), ErrInternal) || CodeOf(errors.New("other")) != ErrInternal.Code() {
		t.Error("an unknown error must be ErrInternal")
	}
}

func TestInfoJSON(t *testing.T) {
	at := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	info := Info{ID: ID{0: 0xab, 15: 1}, Name: "n", Class: Named, State: Sealed, SizeBytes: 5, Tenant: "uid:0", Refs: 1,
		Segment: 3, Offset: 64, Created: at, Sealed: &at, CreatorPID: 9, Creator: "prog",
		Meta: MetaJSON([]byte(`{"dtype":"<f4"}`))}
	b, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"ab000000000000000000000000000001","name":"n","kind":"host","class":"named","state":"sealed","size_bytes":5,` +
		`"tenant":"uid:0","refs":1,"segment":3,"offset":64,"created":"2026-11-21T09:00:00Z","sealed":"2026-11-21T09:00:00Z",` +
		`"creator_pid":9,"creator":"prog","meta":{"dtype":"\u003cf4"},"strict":false}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	if b, err := json.Marshal(Info{Kind: OpenCL, State: Sealed}); err != nil || strings.Contains(string(b), "segment") {
		t.Errorf("what lies in no segment: %s, %v", b, err)
	}
	var back Info
	if err := json.Unmarshal(b, &back); err != nil || back.ID != info.ID || back.Class != Named ||
		back.State != Sealed {
		t.Errorf("back: %+v, %v", back, err)
	}
	if got := string(MetaJSON([]byte{0xff, 0})); got != `{"base64":"/wA="}` {
		t.Errorf("opaque meta shown as %s", got)
	}
	if err := json.Unmarshal([]byte(`{"class":"eternal"}`), &back); !errors.Is(err, ErrInvalid) {
		t.Errorf("unknown class: %v", err)
	}
}

package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"tendril/store/object"
)

// offering makes an authority with a certificate of a role, its authority behind it.
func offering(t testing.TB, role Role, now func() time.Time) (*Authority, *tls.Certificate) {
	t.Helper()
	dir := t.TempDir()
	a, err := OpenAuthority(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	s := Subject{Name: "b", Role: role}
	if role == Node {
		s.Node = "b"
	}
	ring, err := OpenKeyring(context.Background(), dir+"/own.pem", "b", a.Trust(),
		IssueFrom(a, s, NodeLife, nil), now)
	if err != nil {
		t.Fatal(err)
	}
	return a, ring.Certificate()
}

func someOffer(now time.Time) Offer {
	return Offer{Address: "10.0.0.2:7433",
		Tickets: [][]byte{bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)}, Issued: now}
}

func TestOffer(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	a, own := offering(t, Node, clock)
	print := FingerprintOf(a.Certificate())
	pinned := func(f Fingerprint) bool { return f == print }
	good, err := someOffer(now).Sign(own)
	if err != nil {
		t.Fatal(err)
	}
	o, by, err := OpenOffer(good, pinned, now)
	if err != nil || by != print || o.Address != "10.0.0.2:7433" || len(o.Tickets) != 2 || o.Plaintext {
		t.Fatalf("%+v by %s: %v", o, by, err)
	}
	_, stranger := offering(t, Node, clock)
	_, user := offering(t, User, clock)
	signed := func(o Offer, by *tls.Certificate) []byte {
		raw, err := o.Sign(by)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	altered := func(change func(s *signedOffer)) []byte {
		var s signedOffer
		if err := json.Unmarshal(good, &s); err != nil {
			t.Fatal(err)
		}
		change(&s)
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	other := someOffer(now)
	other.Address = "169.254.169.254:80"
	body, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	any := func(Fingerprint) bool { return true }
	none, many, short := someOffer(now), someOffer(now), someOffer(now)
	none.Tickets, short.Tickets[0] = nil, []byte("short")
	for range 9 {
		many.Tickets = append(many.Tickets, many.Tickets[0])
	}
	for name, c := range map[string]struct {
		raw   []byte
		known func(Fingerprint) bool
		now   time.Time
		want  error
	}{
		"of an authority that nobody named": {signed(someOffer(now), stranger), pinned, now, object.ErrPermission},
		"of a user":                         {signed(someOffer(now), user), any, now, object.ErrPermission},
		"with another address": {altered(func(s *signedOffer) { s.Body = body }), pinned, now,
			object.ErrPermission},
		"with another authority's name": {altered(func(s *signedOffer) { s.Authority = stranger.Certificate[1] }),
			any, now, object.ErrPermission},
		"with a certificate of another": {altered(func(s *signedOffer) { s.Certificate = stranger.Certificate[0] }),
			pinned, now, object.ErrPermission},
		"with no authority": {altered(func(s *signedOffer) { s.Authority = s.Certificate }), any, now,
			object.ErrInvalid},
		"with half a signature": {altered(func(s *signedOffer) { s.Signature = s.Signature[:9] }), pinned,
			now, object.ErrPermission},
		"made an hour ago":      {good, pinned, now.Add(time.Hour), object.ErrPermission},
		"made in an hour":       {good, pinned, now.Add(-time.Hour), object.ErrPermission},
		"without tickets":       {signed(none, own), pinned, now, object.ErrInvalid},
		"with too many tickets": {signed(many, own), pinned, now, object.ErrInvalid},
		"with a short ticket":   {signed(short, own), pinned, now, object.ErrInvalid},
		"of other bytes":        {[]byte("{}"), pinned, now, object.ErrInvalid},
		"of too many bytes":     {make([]byte, MaxOfferBytes+1), pinned, now, object.ErrInvalid},
	} {
		if _, _, err := OpenOffer(c.raw, c.known, c.now); !errors.Is(err, c.want) {
			t.Errorf("an offer %s: %v, want %v", name, err, c.want)
		}
	}
}

func TestParseFingerprint(t *testing.T) {
	f := Fingerprint{0: 0xAB, 31: 0xCD}
	for _, text := range []string{f.String(), "AB" + f.String()[2:], "ab:00:" + f.String()[4:]} {
		if got, err := ParseFingerprint(text); err != nil || got != f {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "ab", f.String() + "00", "zz" + f.String()[2:]} {
		if _, err := ParseFingerprint(text); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzOpenOffer(f *testing.F) {
	now := time.Now()
	_, own := offering(f, Node, func() time.Time { return now })
	good, err := someOffer(now).Sign(own)
	if err != nil {
		f.Fatal(err)
	}
	for n := range 8 {
		f.Add(good[:len(good)*n/7])
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, _, err := OpenOffer(raw, func(Fingerprint) bool { return true }, now)
		if err == nil && (len(o.Tickets) == 0 || len(o.Tickets) > MaxOfferTickets || len(raw) > MaxOfferBytes) {
			t.Fatalf("%+v of %d bytes", o, len(raw))
		}
	})
}

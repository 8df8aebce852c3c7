package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"tendril/store/object"
)

// What was decided before the lock was let go is looked at again when it is carried out: each test has another client
// change what the decision went by.

// manyLabels are so many that they do not fit into what is left.
func manyLabels() map[string]string {
	labels := map[string]string{}
	for i := range object.MaxLabels {
		labels[fmt.Sprint(i)] = string(big[:object.MaxLabelBytes])
	}
	return labels
}

// TestMetadataOfWhatIsSealed: an object that is sealed while memory for its other metadata is looked for keeps what it
// was sealed with.
func TestMetadataOfWhatIsSealed(t *testing.T) {
	s, disk := gatedStore(t, nil)
	c := connect(t, s, "x")
	h, err := c.Create(Spec{SizeBytes: 10, Meta: []byte("first")})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	err = whileMemoryIsShort(t, s, disk, func() error { return c.SealWith(h.ID, big) }, func() {
		if err := c.Seal(h.ID, false); err != nil {
			t.Error(err)
		}
	})
	wantErr(t, err, object.ErrSealed)
	if meta, err := s.Meta(h.ID); err != nil || string(meta) != "first" {
		t.Errorf("a sealed object has %d bytes of metadata instead of 5, %v", len(meta), err)
	}
	release(t, c, h.ID)
	mustAgree(t, s, true)
}

// TestTimeOfWhatIsPersisted: an object that is persisted while memory for its labels is looked for gets no time to live
// any more.
func TestTimeOfWhatIsPersisted(t *testing.T) {
	s, disk := gatedStore(t, nil)
	c, other := connect(t, s, "x"), connect(t, s, "x")
	id := filled(t, c, named("n", 10), 1)
	h, err := c.Get(id) // which keeps it from going to disk
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	ttl := time.Hour
	err = whileMemoryIsShort(t, s, disk,
		func() error { return c.Update(id, "", Change{Labels: manyLabels(), TTL: &ttl}) }, func() {
			if err := other.Update(id, "", Change{Persist: true}); err != nil {
				t.Error(err)
			}
		})
	wantErr(t, err, object.ErrInvalid)
	if info, err := c.Stat(id, ""); err != nil || info.Class != object.Persisted || info.Expires != nil {
		t.Errorf("a persisted object is of class %s and expires at %v, %v", info.Class, info.Expires, err)
	}
	release(t, c, id)
	mustAgree(t, s, true)
}

// TestGrantsStayBounded: calls that wait for the same object do not go beyond its bound together.
func TestGrantsStayBounded(t *testing.T) {
	s, disk := gatedStore(t, nil)
	c, other := connect(t, s, "x"), connect(t, s, "x")
	ids := spilled(t, c, 100_000)
	arrived, goOn := disk.stop("read")
	back := later(func() error { _, err := contents(t, other, ids[0]); return err })
	arrived()
	before := s.Status().TableBytes
	charged := func() uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return c.tenant.charged
	}
	has := charged()
	var waits []func() error
	for i := range maxGrants + 6 {
		waits = append(waits, later(func() error { return c.Grant(ids[0], "", fmt.Sprint("uid:", i), false) }))
	}
	waitFor(t, func() bool { return charged() >= has+(maxGrants+6)*grantBytes }) // all wait
	goOn()
	refused := 0
	for _, wait := range waits {
		if err := wait(); errors.Is(err, object.ErrInvalid) {
			refused++
		} else if err != nil && !object.IsShort(err) {
			t.Error(err)
		}
	}
	if err := back(); err != nil {
		t.Fatal(err)
	}
	if n := s.grants(ids[0]); n > maxGrants {
		t.Errorf("%d grants of at most %d; %d refused", n, maxGrants, refused)
	}
	if more := s.Status().TableBytes - before; more != uint64(s.grants(ids[0]))*grantBytes {
		t.Errorf("%d bytes are charged for %d grants", more, s.grants(ids[0]))
	}
	mustAgree(t, s, true)
}

// TestRenamedWhileItIsWrittenAnew: what changes of an object while a scrub replaces its bad copy on disk is on disk
// afterwards.
func TestRenamedWhileItIsWrittenAnew(t *testing.T) {
	s, disk := gatedStore(t, nil)
	c, other := connect(t, s, "x"), connect(t, s, "x")
	id := filled(t, c, Spec{SizeBytes: 50_000, Class: object.Persisted, Name: "old"}, 1)
	flipOnDisk(t, s.opts.SpillDir, id, 7)
	arrived, goOn := disk.stop("sync")
	scrub := later(func() error { scrubbed(t, c, false); return nil })
	arrived()
	if err := other.Rename("old", "new", false); err != nil {
		t.Fatal(err)
	}
	goOn()
	if err := scrub(); err != nil {
		t.Fatal(err)
	}
	if r, err := s.spill.Read(id.String()); err != nil || r.Name != "new" {
		t.Errorf("after a restart the object would be named %q, %v", r.Name, err)
	}
	mustAgree(t, s, true)
}

// TestChangedWhileItIsComposed: what changes of a persisted composite while it goes to disk is on disk afterwards.
func TestChangedWhileItIsComposed(t *testing.T) {
	s, disk := gatedStore(t, nil)
	c, other := connect(t, s, "x"), connect(t, s, "x")
	part := filled(t, c, Spec{SizeBytes: 10, Class: object.Persisted}, 1)
	arrived, goOn := disk.stop("sync")
	var id object.ID
	composed := later(func() (err error) {
		id, err = c.Compose(Spec{Class: object.Persisted, Name: "n"}, []object.Member{{Name: "part", ID: part}})
		return err
	})
	arrived()
	for _, info := range other.List("", true) {
		if len(info.Members) > 0 {
			if err := other.Update(info.ID, "", Change{Labels: map[string]string{"a": "b"}}); err != nil {
				t.Error(err)
			}
		}
	}
	goOn()
	if err := composed(); err != nil {
		t.Fatal(err)
	}
	if r, err := s.spill.Read(id.String()); err != nil || r.Name != "n" || r.Labels["a"] != "b" {
		t.Errorf("after a restart the composite would be named %q and have the labels %v, %v", r.Name, r.Labels, err)
	}
	release(t, c, id)
	mustAgree(t, s, true)
}

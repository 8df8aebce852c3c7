package segment

import (
	"errors"
	"os"
	"testing"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// faulty is a kernel that refuses some calls.
type faulty struct {
	Linux
	memfd, truncate, populate, dup, seals, watch, mapping, huge error
	page                                                        int64 // what MemfdHuge says; the memory is ordinary
}

func (k faulty) MemfdCreate(name string) (int, error) {
	if k.memfd != nil {
		return -1, k.memfd
	}
	return k.Linux.MemfdCreate(name)
}

func (k faulty) MemfdHuge(name string) (int, int64, error) {
	if k.huge != nil {
		return -1, 0, k.huge
	}
	fd, err := k.Linux.MemfdCreate(name)
	return fd, k.page, err
}

func (k faulty) Ftruncate(fd int, bytes int64) error {
	if k.truncate != nil {
		return k.truncate
	}
	return k.Linux.Ftruncate(fd, bytes)
}

func (k faulty) Populate(fd int, off, n int64) error {
	if k.populate != nil {
		return k.populate
	}
	return k.Linux.Populate(fd, off, n)
}

func (k faulty) Dup(fd int) (int, error) {
	if k.dup != nil {
		return -1, k.dup
	}
	return k.Linux.Dup(fd)
}

func (k faulty) AddSeals(fd, seals int) error {
	if k.seals != nil {
		return k.seals
	}
	return k.Linux.AddSeals(fd, seals)
}

func (k faulty) Watch(watch, fd int) (int, error) {
	if k.watch != nil {
		return 0, k.watch
	}
	return k.Linux.Watch(watch, fd)
}

func (k faulty) Map(f *os.File, n, prot int) (mmap.MMap, error) {
	if k.mapping != nil {
		return nil, k.mapping
	}
	return k.Linux.Map(f, n, prot)
}

// over makes a segment over a kernel, and gives what f comes to.
func over(f func(m *Memory) error) func(System) error {
	return func(k System) error {
		m, err := Create(k, PageBytes)
		if err != nil {
			return err
		}
		defer m.Close()
		return f(m)
	}
}

// TestRefusals: whatever the kernel refuses is the error that callers know what to do about, and no descriptor stays.
func TestRefusals(t *testing.T) {
	nothing := func(*Memory) error { return nil }
	createHuge := func(bytes uint64, stop func() bool) func(System) error {
		return func(k System) error {
			m, err := CreateHuge(k, bytes, stop)
			if err == nil {
				m.Close()
			}
			return err
		}
	}
	for name, test := range map[string]struct {
		kernel faulty
		do     func(System) error
		want   error
	}{
		"no descriptor": {faulty{memfd: unix.EMFILE}, over(nothing), object.ErrFull},
		"no size":       {faulty{truncate: unix.ENOSPC}, over(nothing), object.ErrFull},
		"no pages": {faulty{populate: unix.ENOMEM}, over(func(m *Memory) error {
			return m.Populate(0, PageBytes, nil)
		}), object.ErrFull},
		"no seals":              {faulty{seals: unix.EPERM}, over((*Memory).Fix), object.ErrInternal},
		"no seals, for readers": {faulty{seals: unix.EPERM}, over((*Memory).SealForReaders), object.ErrInternal},
		"no seals, strict":      {faulty{seals: unix.EPERM}, over((*Memory).SealStrict), object.ErrInternal},
		"in use":                {faulty{seals: unix.EBUSY}, over((*Memory).SealStrict), object.ErrBusy},
		"no second descriptor": {faulty{dup: unix.EMFILE}, over(func(m *Memory) error {
			_, err := m.Again()
			return err
		}), object.ErrFull},
		"none for a mapping": {faulty{dup: unix.EMFILE}, over(func(m *Memory) error {
			_, err := m.Map(true)
			return err
		}), object.ErrFull},
		"no mapping": {faulty{mapping: unix.ENOMEM}, over(func(m *Memory) error {
			_, err := m.Map(false)
			return err
		}), object.ErrFull},
		"no huge pages here": {faulty{huge: unix.EINVAL}, createHuge(1, nil), object.ErrUnsupported},
		"ordinary ones":      {faulty{page: PageBytes}, createHuge(1, nil), object.ErrUnsupported},
		"too large ones":     {faulty{page: 2 * hugeStepBytes}, createHuge(1, nil), object.ErrUnsupported},
		"huge, of no bytes":  {faulty{page: 2 << 20}, createHuge(0, nil), object.ErrUnsupported},
		"huge, of too many":  {faulty{page: 2 << 20}, createHuge(1<<63, nil), object.ErrUnsupported},
		"huge, no size":      {faulty{page: 2 << 20, truncate: unix.ENOSPC}, createHuge(1, nil), object.ErrFull},
		"huge, not enough":   {faulty{page: 2 << 20, populate: unix.ENOMEM}, createHuge(1, nil), object.ErrFull},
		"huge, given up":     {faulty{page: 2 << 20}, createHuge(1, func() bool { return true }), object.ErrTimeout},
		"no watch": {faulty{watch: unix.ENOSPC}, func(k System) error {
			w, err := NewWatch(k)
			w.Close()
			return err
		}, object.ErrUnsupported},
		"no memory to try a watch with": {faulty{memfd: unix.EMFILE}, func(k System) error {
			w, err := NewWatch(k)
			w.Close()
			return err
		}, object.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			before := descriptors()
			if err := test.do(test.kernel); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			if now := descriptors(); now != before {
				t.Errorf("%d descriptors, %d before", now, before)
			}
		})
	}
}

// TestHugePages: a segment in larger pages has whole ones, all populated.
func TestHugePages(t *testing.T) {
	m, err := CreateHuge(faulty{page: 2 << 20}, 2<<20+1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Bytes() != 4<<20 || !m.Huge() || residentKiB(t, m) != 4<<10 {
		t.Errorf("%d bytes, huge %v, %d KiB of them there", m.Bytes(), m.Huge(), residentKiB(t, m))
	}
	again, err := m.Again()
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Bytes() != m.Bytes() || !again.Huge() || again.FD() == m.FD() {
		t.Errorf("again: %d bytes, huge %v, descriptor %d for %d", again.Bytes(), again.Huge(), again.FD(), m.FD())
	}
}

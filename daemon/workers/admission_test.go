package workers

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// gpuBytes is what the fake driver's GPUs have.
const gpuBytes = 1 << 30

// fakeGPUs are the platforms of a pool whose driver has the GPUs of a mode.
func fakeGPUs(t *testing.T, alter func(*Options), mode string) (*Pool, []*Platform) {
	t.Helper()
	p, _ := newPool(t, func(o *Options) {
		o.Warm = -1
		alter(o)
	}, mode)
	platforms, err := p.Platforms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p, platforms
}

// begin opens a session, whose worker is ended at the test's end at the latest.
func begin(t *testing.T, ctx context.Context, p *Pool, pl *Platform, session uint64) error {
	o, err := p.Open(ctx, Request{Session: session, Platform: pl, Tenant: me()})
	if err == nil {
		o.Ring.Close()
		t.Cleanup(func() { o.Socket.Close() }) // at its end the worker ends, and its session takes nothing any more
	}
	return err
}

// As many sessions are let in as fit beside each other and the objects of the store, and the next when one ends.
func TestSessionsAreAdmittedByMemory(t *testing.T) {
	var objects, asked atomic.Uint64
	p, platforms := fakeGPUs(t, func(o *Options) {
		o.SessionBytes = gpuBytes / 4
		o.Objects = func(tenant, uuid string, most uint64) uint64 {
			asked.Store(most)
			if tenant != me() || len(uuid) != 32 {
				t.Errorf("asked for %q, %q", tenant, uuid)
			}
			return objects.Load()
		}
	}, "gpus")
	for i := range uint64(4) {
		if err := begin(t, t.Context(), p, platforms[0], i+1); err != nil || asked.Load() != (3-i)*gpuBytes/4 {
			t.Fatalf("session %d: %v, with room for %d bytes of objects", i+1, err, asked.Load())
		}
	}
	err := begin(t, t.Context(), p, platforms[0], 5)
	if !errors.Is(err, object.ErrBusy) || !strings.Contains(err.Error(), "1.0 GiB: 4 sessions there, of 256 MiB each") {
		t.Errorf("a session too many: %v", err)
	}
	p.ReleaseSession(1)
	if err := begin(t, t.Context(), p, platforms[0], 5); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	p.ReleaseSession(2)
	objects.Store(1)
	if err := begin(t, t.Context(), p, platforms[0], 6); !errors.Is(err, object.ErrBusy) {
		t.Errorf("beside an object: %v", err)
	}
	for i := range uint64(6) {
		p.ReleaseSession(i + 1)
	}
	if p.mu.Lock(); len(p.admitted) != 0 || p.shares.total != 0 {
		t.Errorf("all have ended, and %v sessions and %d workers are charged", p.admitted, p.shares.total)
	}
	p.mu.Unlock()
}

// The last eighth of the sessions that a GPU has room for is for tenants that have none there.
func TestOneTenantDoesNotTakeEveryPlaceOnAGPU(t *testing.T) {
	p, platforms := fakeGPUs(t, func(o *Options) { o.SessionBytes = gpuBytes / 16 }, "gpus")
	pl := platforms[0]
	for i := range 14 {
		if err := p.admit(t.Context(), "greedy", pl); err != nil {
			t.Fatalf("session %d: %v", i+1, err)
		}
	}
	refused := func(tenant string) {
		t.Helper()
		err := p.admit(t.Context(), tenant, pl)
		if !errors.Is(err, object.ErrBusy) || !strings.Contains(err.Error(), "the last 2 are for tenants that have none") {
			t.Errorf("%s takes a place that is kept: %v", tenant, err)
		}
	}
	refused("greedy")
	for _, other := range []string{"b", "c"} {
		if err := p.admit(t.Context(), other, pl); err != nil {
			t.Errorf("%s: %v", other, err)
		}
	}
	refused("b")
	p.mu.Lock()
	defer p.mu.Unlock()
	for tenant, n := range map[string]int{"greedy": 14, "b": 1, "c": 1} {
		for range n {
			p.leave(pl, tenant)
		}
	}
	if len(p.admitted) != 0 {
		t.Errorf("all have left, and %v are charged", p.admitted)
	}
}

// A session that does not fit waits for another's end, no longer than the pool has it wait, or than anybody wants it.
func TestSessionsWaitForMemory(t *testing.T) {
	p, platforms := fakeGPUs(t, func(o *Options) { o.SessionBytes, o.Wait = gpuBytes, time.Hour }, "gpus")
	if err := begin(t, t.Context(), p, platforms[0], 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error, 2)
	go func() { given <- begin(t, ctx, p, platforms[0], 2) }()
	cancel()
	if err := <-given; !errors.Is(err, object.ErrNoDevice) {
		t.Errorf("nobody waits: %v", err)
	}
	go func() { given <- begin(t, t.Context(), p, platforms[0], 3) }()
	p.ReleaseSession(1)
	if err := <-given; err != nil {
		t.Errorf("after the first ended: %v", err)
	}
}

// Sessions that wait look again when objects leave a GPU, all of them.
func TestSessionsWaitForObjects(t *testing.T) {
	var objects atomic.Uint64
	objects.Store(1)
	room, looks := make(chan struct{}, 1), make(chan struct{}, 100)
	p, platforms := fakeGPUs(t, func(o *Options) {
		o.SessionBytes, o.Wait, o.GPURoom = gpuBytes/2, time.Hour, room
		o.Objects = func(string, string, uint64) uint64 {
			looks <- struct{}{}
			return objects.Load() * gpuBytes
		}
	}, "gpus")
	given := make(chan error, 2)
	for range 2 {
		go func() { given <- p.admit(t.Context(), me(), platforms[0]) }()
	}
	<-looks
	<-looks // neither fits
	objects.Store(0)
	room <- struct{}{}
	for range 2 {
		if err := <-given; err != nil {
			t.Fatal(err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 2 {
		p.leave(platforms[0], me())
	}
}

// Where the bound is off, and on devices without memory of their own, any number is let in.
func TestSessionsThatNeedNoMemory(t *testing.T) {
	for mode, each := range map[string]uint64{"gpus": 0, "good": 1 << 40} {
		p, platforms := fakeGPUs(t, func(o *Options) { o.SessionBytes = each }, mode)
		for i := range uint64(3) {
			if err := begin(t, t.Context(), p, platforms[0], i+1); err != nil {
				t.Errorf("%s, session %d: %v", mode, i+1, err)
			}
		}
		for i := range uint64(3) {
			p.ReleaseSession(i + 1)
		}
	}
}

// A GPU for one process has one session.
func TestComputeModesOfGPUs(t *testing.T) {
	p, platforms := fakeGPUs(t, func(*Options) {}, "gpus-exclusive")
	for i := range uint64(2) {
		if err := begin(t, t.Context(), p, platforms[0], i+1); err != nil {
			t.Fatal(err)
		}
	}
	if err := begin(t, t.Context(), p, platforms[0], 3); !errors.Is(err, object.ErrBusy) ||
		!strings.Contains(err.Error(), "compute mode exclusive") {
		t.Errorf("three sessions of two GPUs, each for one process: %v", err)
	}
}

// A GPU for no process is not offered, with the reason.
func TestAGPUForNoProcess(t *testing.T) {
	p, platforms := fakeGPUs(t, func(*Options) {}, "gpus-prohibited")
	hidden := p.Hidden()
	if len(platforms) != 1 || len(platforms[0].Places) != 1 || platforms[0].Places[0] != 1 || len(hidden) != 1 ||
		hidden[0].Index != 0 || !strings.Contains(hidden[0].Why, "compute mode is prohibited") {
		t.Errorf("platforms %+v, hidden %+v", platforms, hidden)
	}
}

// Workers that nobody wants for a while are not kept ready, and the next session has them kept ready again.
func TestIdleWorkersAreRetired(t *testing.T) {
	p, _ := newPool(t, func(o *Options) { o.WarmTime = time.Hour }, "good")
	await.Until(t, "a warm worker", func() bool { return warmReady(p) })
	idle := func() {
		p.mu.Lock()
		p.wanted = time.Now().Add(-2 * time.Hour)
		p.mu.Unlock()
		p.nudge()
	}
	p.mu.Lock()
	wanted := p.wanted
	p.mu.Unlock()
	if next := p.warmUp(wanted.Add(time.Minute)); next != wanted.Add(time.Hour) {
		t.Errorf("wanted at %v, looked at again at %v", wanted, next)
	}
	idle()
	await.Until(t, "its end", func() bool { return len(p.Workers()) == 0 })
	open(t, p, 1, me())
	await.Until(t, "another warm worker", func() bool { return warmReady(p) })
	idle()
	await.Until(t, "its end, and not the one's that serves", func() bool {
		list := p.Workers()
		return len(list) == 1 && list[0].State == "serving"
	})
}

package daemon

import (
	"errors"
	"sync"
	"testing"
	"time"

	"tendril/client"
	"tendril/cluster/transfer"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// stuck takes nothing until it is let go.
type stuck struct {
	intoMemory
	letGo <-chan struct{}
}

// WriteAt implements io.WriterAt.
func (s stuck) WriteAt(b []byte, at int64) (int, error) {
	<-s.letGo
	return s.intoMemory.WriteAt(b, at)
}

// TestAMemberThatAsksForMoreThanItTakes: what another node asks for of an object in a device's memory is copied, and
// its tenant is charged for that. A node that takes nothing of it has some copies made and no more; whoever is at the
// node itself goes on.
func TestAMemberThatAsksForMoreThanItTakes(t *testing.T) {
	const most, many = 2, 6
	x, gpu := gpuAtFirst(t, 2, 64<<20, nil)
	giver, asker := x.all[0], x.all[1]
	giver.bringing.giving.each, giver.bringing.giveWait = most, 10*time.Millisecond
	want := noise(5, 12<<20) // more than lies between the two nodes
	id := x.publishOnGPU(gpu, "o", want, "")
	x.share()
	before := giver.store.Status().OpenObjects
	goOn := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(goOn) })
	defer letGo()
	o, _, _ := asker.publishedAs(x.conns[0].Daemon().Tenant, id)
	pulled := make(chan error, many)
	for range many {
		job := transfer.Job{ID: o.ID, Tenant: o.Tenant, Epoch: o.Epoch, SizeBytes: o.SizeBytes, Streams: 1,
			Into: stuck{intoMemory{tempFile(t), 0}, goOn}, Sources: []transfer.Source{
				{Node: giver.meta.node, Name: "n0", Incarnation: giver.meta.incarnation}}}
		go func() {
			_, err := transfer.Pull(t.Context(), job, asker.dialTransfer)
			pulled <- err
		}()
	}
	for range many - most {
		if err := <-pulled; !errors.Is(err, object.ErrBusy) {
			t.Errorf("one too many: %v", err)
		}
	}
	await.Until(t, "the giver has made what it may", func() bool {
		n := giver.store.Status().OpenObjects - before
		if n > most {
			t.Fatalf("%d copies are held for a node that takes nothing", n)
		}
		return n == most
	})
	x.put(0, "another", []byte("bytes"), client.CreateOptions{})
	letGo()
	for range most {
		if err := <-pulled; err != nil {
			t.Error(err)
		}
	}
	if got, err := x.get(1, "o"); err != nil || string(got) != string(want) {
		t.Errorf("as others get it: %d bytes, %v", len(got), err)
	}
	await.Until(t, "nothing is counted any more", func() bool {
		giver.bringing.giving.mu.Lock()
		defer giver.bringing.giving.mu.Unlock()
		return len(giver.bringing.giving.of) == 0
	})
}

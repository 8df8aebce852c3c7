package daemon

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"tendril/client"
)

// toldPublished is what clients were told is published, and not to be taken back.
type toldPublished struct {
	mu   sync.Mutex
	told []toldObject
}

type toldObject struct {
	name string
	node int
}

const (
	toldPause = 100 * time.Millisecond // between two publications of a client
	toldLook  = 300                    // objects whose bytes are compared, of each test
)

// content is what the object of a name consists of.
func (o toldObject) content() []byte {
	random := rand.New(rand.NewPCG(uint64(len(o.name)), uint64(o.node)))
	return bytes.Repeat([]byte(o.name+"|"), 1+random.IntN(100))
}

// work publishes until the context ends. What has no answer, or an error, may be published or not.
func (x *toldPublished) work(ctx context.Context, conn *client.Conn, node int) {
	for i := 0; ctx.Err() == nil; i++ {
		o := toldObject{fmt.Sprintf("told-%d-%d", node, i), node}
		if published(conn, o) == nil {
			x.mu.Lock()
			x.told = append(x.told, o)
			x.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(toldPause):
		}
	}
}

func published(conn *client.Conn, o toldObject) error {
	made, err := conn.Put(context.Background(), o.content(), client.CreateOptions{})
	if err != nil {
		return err
	}
	defer made.Release()
	_, err = conn.Publish(context.Background(), made.ID(), o.name, false)
	return err
}

// check gets what was told at other nodes than the one that has it.
func (x *toldPublished) check(t *testing.T, conns []*client.Conn) {
	t.Helper()
	rand.Shuffle(len(x.told), func(i, j int) { x.told[i], x.told[j] = x.told[j], x.told[i] })
	looked := x.told[:min(len(x.told), toldLook)]
	for i, o := range looked {
		conn := conns[(o.node+1+i%(len(conns)-1))%len(conns)]
		got, err := conn.GetByName(t.Context(), o.name, 5*time.Minute)
		if err != nil {
			t.Errorf("%s was published at node %d, clients were told: %v", o.name, o.node, err)
			continue
		}
		if !bytes.Equal(got.Bytes(), o.content()) {
			t.Errorf("%s is not what was published", o.name)
		}
		got.Release()
	}
	t.Logf("%d objects were published for sure, %d compared byte for byte at another node", len(x.told), len(looked))
}

package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"tendril/client"
	"tendril/client/admin"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// joinSteps are the steps of a join at which a daemon can be killed, and whether the node is a member afterwards.
var joinSteps = []struct {
	at     string
	member bool
}{
	{"asked", false},
	{"staged", false},
	{"committed", true},
	{"closed", true},
	{"removed the log before the last", true}, // there is none; where it would be
	{"put the log aside", true},
	{"put the new log in its place", true},
	{"moved authority.pem", true},
	{"moved node.pem", true},
	{"moved members.json", true},
	{"moved republish.json", true},
	{"moved", true},
	{"registered", true},
}

// However a join is cut short, the node starts, either as what it was or as a member, and what it had is there.
func TestAJoinIsWholeWhereverItIsKilled(t *testing.T) {
	for _, step := range joinSteps {
		t.Run(step.at, func(t *testing.T) {
			ns, ca := newNodes(t), aNode(t, "a")
			ca.Listen = freePort(t) // what it tells the cluster of before the port is open
			a := ns.start(ca)
			ns.gone.Store(true)
			dir, listen := handoverDir(t), "HANDOVER_LISTEN="+freePort(t)
			b := startNodeProcess(t, dir, step.at, false, listen, "HANDOVER_NAME=b")
			conn := b.soon(t, dir)
			persist(t, conn, "kept")
			_, err := admin.Of(conn).JoinCluster(context.Background(), a.address(), nodeToken(t, ca))
			if !errors.Is(err, client.ErrDisconnected) {
				t.Fatalf("the join was not cut short: %v", err)
			}
			<-b.ended

			conn = startNodeProcess(t, dir, "", false, listen, "HANDOVER_NAME=b").soon(t, dir)
			if names := nodeNamesOf(infoOf(t, conn)); !step.member && !slices.Equal(names, []string{"b"}) {
				t.Fatalf("the node is with %v", names)
			}
			if !step.member {
				if _, err := admin.Of(conn).JoinCluster(context.Background(), a.address(), nodeToken(t,
					ca)); err != nil {
					t.Fatalf("the next attempt: %v", err)
				}
			}
			await.Until(t, "the node is a member", func() bool {
				x := infoOf(t, conn)
				return x.Entered && slices.Equal(nodeNamesOf(x), []string{"a", "b"})
			})
			await.Until(t, "what it has published is published in the cluster", func() bool {
				return slices.Equal(a.publishedNames(), []string{"kept"})
			})
			if o, err := conn.GetByName(t.Context(), "kept", 0); err != nil || string(o.Bytes()) != "content" {
				t.Errorf("the object: %v", err)
			}
		})
	}
}

func infoOf(t *testing.T, conn *client.Conn) (x ClusterInfo) {
	t.Helper()
	raw, err := admin.Of(conn).ClusterStatus(context.Background())
	if err == nil {
		err = json.Unmarshal(raw, &x)
	}
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// persist makes an object that outlives its daemon, and publishes it.
func persist(t *testing.T, conn *client.Conn, name string) {
	t.Helper()
	b, err := conn.Create(context.Background(), 7, client.CreateOptions{Name: name, Class: object.Persisted})
	if err != nil {
		t.Fatal(err)
	}
	copy(b.Bytes(), "content")
	o, err := b.Seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer o.Release()
	if _, err := conn.Publish(context.Background(), o.ID(), name, false); err != nil {
		t.Fatal(err)
	}
}

package raftnode

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"tendril/cluster/fsm"
	until "tendril/tools/e2e/await"
)

// BenchmarkInThree proposes to a leader with two followers, by one client and by 64 at a time. bare is raft itself with
// the same library for its log, the same connections and a state machine that does nothing: what the library costs.
func BenchmarkInThree(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("raft=ours/clients=%d", clients), func(b *testing.B) {
			nodes, _ := three(b)
			proposeBy(b, clients, func(i int) error {
				_, err := nodes["n1"].Propose(context.Background(), request(i), &fsm.Nop{})
				return err
			})
		})
		b.Run(fmt.Sprintf("raft=bare/clients=%d", clients), func(b *testing.B) {
			lead := bareThree(b)
			proposeBy(b, clients, func(int) error { return lead.Apply(make([]byte, 64), 0).Error() })
		})
	}
}

// proposeBy has clients propose b.N commands, and reports the median time of one beside the mean.
func proposeBy(b *testing.B, clients int, propose func(i int) error) {
	took := make([]time.Duration, b.N)
	var all sync.WaitGroup
	b.ResetTimer()
	for c := range clients {
		all.Go(func() {
			for i := c; i < b.N; i += clients {
				began := time.Now()
				if err := propose(100 + i); err != nil {
					b.Error(err)
				}
				took[i] = time.Since(began)
			}
		})
	}
	all.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-µs")
}

// bareThree runs three rafts, and gives the one that leads.
func bareThree(b *testing.B) (lead *raft.Raft) {
	var servers []raft.Server
	var layers []tcpLayer
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		layers = append(layers, tcpLayer{l})
		servers = append(servers, raft.Server{ID: raft.ServerID(fmt.Sprint("n", i)),
			Address: raft.ServerAddress(l.Addr().String())})
	}
	var rafts []*raft.Raft
	for i, s := range servers {
		conf := raft.DefaultConfig()
		conf.LocalID, conf.Logger = s.ID, hclog.NewNullLogger()
		conf.BatchApplyCh, conf.NoLegacyTelemetry = true, true
		log, err := wal.Open(b.TempDir(), wal.WithSegmentSize(4<<20))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { log.Close() })
		cache, err := raft.NewLogCache(512, log)
		if err != nil {
			b.Fatal(err)
		}
		trans := raft.NewNetworkTransport(layers[i], 3, 10*time.Second, io.Discard)
		stable, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		if err := raft.BootstrapCluster(conf, cache, stable, snapshots, trans,
			raft.Configuration{Servers: servers}); err != nil {
			b.Fatal(err)
		}
		r, err := raft.NewRaft(conf, nothing{}, cache, stable, snapshots, trans)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = r.Shutdown().Error(); trans.Close() })
		rafts = append(rafts, r)
	}
	until.Until(b, "one of the rafts leads", func() bool {
		for _, r := range rafts {
			if r.State() == raft.Leader {
				lead = r
			}
		}
		return lead != nil
	})
	return lead
}

// nothing is a state machine that does nothing.
type nothing struct{}

func (nothing) Apply(*raft.Log) any { return nil }

func (nothing) ApplyBatch(logs []*raft.Log) []any { return make([]any, len(logs)) }

func (nothing) Snapshot() (raft.FSMSnapshot, error) { return nil, raft.ErrNothingNewToSnapshot }

func (nothing) Restore(r io.ReadCloser) error { return r.Close() }

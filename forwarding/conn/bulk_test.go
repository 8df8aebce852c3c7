package conn

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"tendril/forwarding/clwire"
	"tendril/tools/e2e/await"
)

// bulk begins an operation; its record would be sent now.
func (r *rig) bulk(o *BulkOp, m *memory) *BulkOp {
	r.t.Helper()
	o.Size, o.OnePiece = uint64(len(m.bytes)), m.row == 0
	if r.c.Bulk(o, m); !o.Register() {
		r.t.Fatal("the worker is gone")
	}
	return o
}

// is checks how an operation ended, once it has.
func (r *rig) is(o *BulkOp, m *memory, want int32) {
	r.t.Helper()
	if !r.c.Wait(&o.Completion) {
		r.t.Fatal("the worker died")
	}
	if o.Status != want || !slices.Equal(m.ends(), []int32{want}) {
		r.t.Errorf("the operation ended with %d, its owner heard %v; want %d", o.Status, m.ends(), want)
	}
}

// everyFar runs a test in the clear and with TLS, with the program's memory in one piece and in rows.
func everyFar(t *testing.T, f func(t *testing.T, secure bool, row uint64)) {
	for _, secure := range []bool{false, true} {
		for _, row := range []uint64{0, 1000} {
			t.Run(fmt.Sprintf("tls=%v/row=%d", secure, row), func(t *testing.T) { f(t, secure, row) })
		}
	}
}

// A read's chunks come by any lane in any order, before and behind HostReady; it ends when both are there.
func TestReadByLanes(t *testing.T) {
	everyFar(t, func(t *testing.T, secure bool, row uint64) {
		r, f := openFar(t, secure, false)
		if !r.c.Remote() {
			t.Error("it is on this node")
		}
		want := pattern(1_000_000, 3)
		for _, readyFirst := range []bool{true, false} {
			m := &memory{bytes: make([]byte, len(want)), row: row}
			o := r.bulk(&BulkOp{}, m)
			ready := func() { r.w().send(&clwire.HostReady{Op: o.ID}) }
			if readyFirst {
				ready()
			}
			const n = 100_000
			for i := len(want)/n - 1; i >= 0; i-- {
				h := clwire.LaneHeader{Op: o.ID, Offset: uint64(i * n), Length: n}
				if err := f.lane(1+i%2).Send(h, want[i*n:(i+1)*n], nil); err != nil {
					t.Fatal(err)
				}
			}
			if !readyFirst {
				await.Until(t, "the bytes", func() bool { return o.left.Load() == 1 })
				if r.c.Poll(); o.Done() {
					t.Error("it ended before its turn")
				}
				ready()
			}
			r.is(o, m, success)
			if !bytes.Equal(m.bytes, want) {
				t.Error("other bytes came")
			}
			var done clwire.HostDone
			if err := done.Decode(r.w().expect(clwire.TypeHostDone).payload); err != nil || done.Op != o.ID ||
				done.Status != success {
				t.Errorf("the worker heard %+v, %v", done, err)
			}
			if len(r.c.bulk.ops) != 0 {
				t.Error("the operation is still in the table")
			}
		}
	})
}

// A small read's bytes come on the control stream.
func TestReadInline(t *testing.T) {
	everyFar(t, func(t *testing.T, secure bool, row uint64) {
		r, _ := openFar(t, secure, false)
		want := pattern(10_000, 4)
		m := &memory{bytes: make([]byte, len(want)), row: row}
		o := r.bulk(&BulkOp{Inline: true}, m)
		r.w().send(clwire.NewBulkData(o.ID, 0, want[:4000]))
		r.w().send(clwire.NewBulkData(o.ID, 4000, want[4000:]))
		r.w().send(clwire.NewBulkData(99, 0, want)) // of one that is over
		r.w().send(&clwire.BulkDone{Op: o.ID})
		r.w().send(&clwire.BulkDone{Op: 99})
		r.is(o, m, success)
		if !bytes.Equal(m.bytes, want) {
			t.Error("other bytes came")
		}
	})
}

// A read may be over with its first bytes: the rest of the memory stays as it was.
func TestReadIsCutShort(t *testing.T) {
	for _, inline := range []bool{true, false} {
		t.Run(fmt.Sprintf("inline=%v", inline), func(t *testing.T) {
			r, f := openFar(t, false, false)
			m := &memory{bytes: make([]byte, 10_000)}
			o := r.bulk(&BulkOp{Inline: inline}, m)
			w, part := r.w(), pattern(100, 1)
			w.send(&clwire.BulkLength{Op: o.ID, Bytes: 100})
			if inline {
				w.send(clwire.NewBulkData(o.ID, 0, part))
				w.send(&clwire.BulkDone{Op: o.ID})
			} else {
				w.send(&clwire.HostReady{Op: o.ID})
				if err := f.lane(1).Send(clwire.LaneHeader{Op: o.ID, Length: 100}, part, nil); err != nil {
					t.Fatal(err)
				}
			}
			r.is(o, m, success)
			if !bytes.Equal(m.bytes, append(part, make([]byte, 9900)...)) {
				t.Error("other bytes are there")
			}
		})
	}
}

// A write's bytes arrive whole, whoever sends them, and its end is the worker's word.
func TestWrite(t *testing.T) {
	everyFar(t, func(t *testing.T, secure bool, row uint64) {
		r, f := openFar(t, secure, false)
		f.lane(1)
		f.lane(2)
		for _, blocking := range []bool{true, false} {
			for _, before := range []bool{true, false} {
				m := &memory{bytes: pattern(2<<20, 5), row: row}
				o := &BulkOp{Write: true}
				waited := make(chan struct{})
				if before {
					o.Before = func() { close(waited) }
				}
				r.bulk(o, m)
				r.w().send(&clwire.HostReady{Op: o.ID})
				o.Send(blocking)
				var data []byte
				await.Until(t, "the bytes", func() (done bool) {
					var got uint64
					data, got, _ = f.came(o.ID, o.Size)
					r.c.Poll()
					return got == o.Size
				})
				if !bytes.Equal(data, m.bytes) {
					t.Error("other bytes arrived")
				}
				if before {
					<-waited
				}
				r.w().send(&clwire.BulkDone{Op: o.ID})
				r.is(o, m, success)
			}
		}
	})
}

func TestWriteInline(t *testing.T) {
	r, _ := openFar(t, false, false)
	m := &memory{bytes: pattern(5000, 6), row: 10}
	o := r.bulk(&BulkOp{Write: true, Inline: true}, m)
	o.Send(false)
	var got clwire.BulkBytes
	if err := got.Decode(r.w().expect(clwire.TypeBulkBytes).payload); err != nil || got.Op != o.ID ||
		!bytes.Equal(got.Data, m.bytes) {
		t.Errorf("%d bytes of operation %d arrived, %v", len(got.Data), got.Op, err)
	}
	r.w().send(&clwire.BulkDone{Op: o.ID, Status: -5})
	r.is(o, m, -5)
}

// Before its turn a write sends what the allowance has, and a held one nothing; the rest follows with the turn.
func TestWritesWaitForTheirTurn(t *testing.T) {
	r, f := openFar(t, false, false)
	f.lane(1)
	f.lane(2)
	held, m := &BulkOp{Write: true, Held: true}, &memory{bytes: pattern(1000, 1)}
	r.bulk(held, m)
	held.Send(false)
	large, all := &BulkOp{Write: true}, &memory{bytes: pattern(clwire.StagingBytes+clwire.MaxChunk, 2)}
	r.bulk(large, all)
	large.Send(false)
	await.Until(t, "the allowance",
		func() bool { _, got, _ := f.came(large.ID, large.Size); return got == clwire.StagingBytes })
	small, none := &BulkOp{Write: true, Inline: true}, &memory{bytes: pattern(10, 3)}
	r.bulk(small, none)
	small.Send(false) // nothing of it may go inline now
	r.quiet()         // no BulkBytes came
	if _, got, _ := f.came(held.ID, held.Size); got != 0 {
		t.Errorf("%d bytes of a held write came before its turn", got)
	}
	for _, o := range []*BulkOp{held, large, small} {
		r.w().send(&clwire.HostReady{Op: o.ID})
	}
	o := large
	await.Until(t, "the rest", func() bool { r.c.Poll(); _, got, _ := f.came(o.ID, o.Size); return got == o.Size })
	await.Until(t, "the held one", func() bool { _, got, _ := f.came(held.ID, held.Size); return got == held.Size })
	for o, m := range map[*BulkOp]*memory{held: m, large: all} {
		r.w().send(&clwire.BulkDone{Op: o.ID})
		r.is(o, m, success)
	}
	r.c.bulk.mu.Lock()
	defer r.c.bulk.mu.Unlock()
	if r.c.bulk.ahead != 0 {
		t.Errorf("%d bytes stay booked as sent ahead", r.c.bulk.ahead)
	}
}

// A write that fails before its turn leaves the program's memory alone from then on: its chunks say that they are
// skipped.
func TestWriteIsCancelled(t *testing.T) {
	everyFar(t, func(t *testing.T, secure bool, row uint64) {
		r, f := openFar(t, secure, false)
		f.lane(1)
		o, m := &BulkOp{Write: true, Held: true}, &memory{bytes: pattern(2_000_000, 1), row: row}
		r.bulk(o, m)
		o.Send(false)
		r.w().send(&clwire.HostReady{Op: o.ID, Status: -14})
		await.Until(t, "the skipped chunks", func() bool {
			r.c.Poll()
			_, got, skipped := f.came(o.ID, o.Size)
			return got == 0 && skipped == o.Size
		})
		clear(m.bytes) // the program's own again: the race detector watches
		r.w().send(&clwire.BulkDone{Op: o.ID, Status: -14})
		r.is(o, m, -14)
	})
}

// A read that fails before its turn is over at once, and what still comes of it is thrown away.
func TestReadFails(t *testing.T) {
	everyFar(t, func(t *testing.T, secure bool, row uint64) {
		r, f := openFar(t, secure, false)
		o, m := &BulkOp{}, &memory{bytes: make([]byte, 1000), row: row}
		r.bulk(o, m)
		r.w().send(&clwire.HostReady{Op: o.ID, Status: -14})
		r.is(o, m, -14)
		o.Finish(success) // once
		for range 2 {
			if err := f.lane(1).Send(clwire.LaneHeader{Op: o.ID, Length: 1000}, pattern(1000, 1), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.lane(1).Send(clwire.LaneHeader{Op: 99, Length: 10, Skipped: true}, nil, nil); err != nil {
			t.Fatal(err)
		}
		after, next := &BulkOp{}, &memory{bytes: make([]byte, 1000), row: row}
		r.bulk(after, next)
		r.w().send(&clwire.HostReady{Op: after.ID})
		if err := f.lane(1).Send(clwire.LaneHeader{Op: after.ID, Length: 1000}, pattern(1000, 2), nil); err != nil {
			t.Fatal(err)
		}
		r.is(after, next, success)
		if !bytes.Equal(m.bytes, make([]byte, 1000)) {
			t.Error("a failed read changed the program's memory")
		}
	})
}

// A read that is given up while its chunk is on the way takes none of it.
func TestChunkOfMemoryThatIsGone(t *testing.T) {
	everyFar(t, func(t *testing.T, secure bool, row uint64) {
		r, f := openFar(t, secure, false)
		o, m := &BulkOp{}, &memory{bytes: make([]byte, 1000), row: row}
		r.bulk(o, m)
		o.giveUp()
		if err := f.lane(1).Send(clwire.LaneHeader{Op: o.ID, Length: 1000}, pattern(1000, 1), nil); err != nil {
			t.Fatal(err)
		}
		r.w().send(&clwire.BulkDone{Op: o.ID, Status: -5})
		r.is(o, m, -5)
		await.Until(t, "a lane that still reads", func() bool {
			after, next := &BulkOp{Inline: true}, &memory{bytes: make([]byte, 10)}
			r.bulk(after, next)
			r.w().send(clwire.NewBulkData(after.ID, 0, pattern(10, 1)))
			r.w().send(&clwire.BulkDone{Op: after.ID})
			r.is(after, next, success)
			return true
		})
		if !bytes.Equal(m.bytes, make([]byte, 1000)) {
			t.Error("memory changed that is the program's own")
		}
	})
}

// What a worker says of an operation is checked before a byte of the program's memory is touched; then it ends.
func TestHostileBulk(t *testing.T) {
	const size = 1000
	for name, say := range map[string]func(w *fakeWorker, f *fakeFar, read, write, rect *BulkOp){
		"chunk: offset behind the end": func(_ *fakeWorker, f *fakeFar, read, _, _ *BulkOp) {
			_ = f.lane(1).Send(clwire.LaneHeader{Op: read.ID, Offset: size + 1, Length: 1}, []byte{1}, nil)
		},
		"chunk: offset that wraps": func(_ *fakeWorker, f *fakeFar, read, _, _ *BulkOp) {
			_ = f.lane(1).Send(clwire.LaneHeader{Op: read.ID, Offset: ^uint64(0) - 1, Length: 10},
				make([]byte, 10), nil)
		},
		"chunk: over the end": func(_ *fakeWorker, f *fakeFar, read, _, _ *BulkOp) {
			_ = f.lane(1).Send(clwire.LaneHeader{Op: read.ID, Offset: size - 1, Length: 2}, []byte{1, 2}, nil)
		},
		"chunk: of a write": func(_ *fakeWorker, f *fakeFar, _, write, _ *BulkOp) {
			_ = f.lane(1).Send(clwire.LaneHeader{Op: write.ID, Length: 2}, []byte{1, 2}, nil)
		},
		"chunk: of a read, skipped": func(_ *fakeWorker, f *fakeFar, read, _, _ *BulkOp) {
			_ = f.lane(1).Send(clwire.LaneHeader{Op: read.ID, Length: 2, Skipped: true}, nil, nil)
		},
		"data: over the end": func(w *fakeWorker, _ *fakeFar, read, _, _ *BulkOp) {
			w.send(clwire.NewBulkData(read.ID, size-1, []byte{1, 2}))
		},
		"data: offset that wraps": func(w *fakeWorker, _ *fakeFar, read, _, _ *BulkOp) {
			w.send(clwire.NewBulkData(read.ID, ^uint64(0), []byte{1, 2}))
		},
		"data: of a write": func(w *fakeWorker, _ *fakeFar, _, write, _ *BulkOp) {
			w.send(clwire.NewBulkData(write.ID, 0, []byte{1}))
		},
		"data: half a record": func(w *fakeWorker, _ *fakeFar, _, _,
			_ *BulkOp) {
			w.send(&raw{clwire.TypeBulkData, []byte{1}})
		},
		"done: half a record": func(w *fakeWorker, _ *fakeFar, _, _,
			_ *BulkOp) {
			w.send(&raw{clwire.TypeBulkDone, []byte{1}})
		},
		"length: of a write": func(w *fakeWorker, _ *fakeFar, _, write,
			_ *BulkOp) {
			w.send(&clwire.BulkLength{Op: write.ID})
		},
		"length: of rows": func(w *fakeWorker, _ *fakeFar, _, _,
			rect *BulkOp) {
			w.send(&clwire.BulkLength{Op: rect.ID})
		},
		"length: no shorter": func(w *fakeWorker, _ *fakeFar, read, _, _ *BulkOp) {
			w.send(&clwire.BulkLength{Op: read.ID, Bytes: size})
		},
		"length: twice": func(w *fakeWorker, _ *fakeFar, read, _, _ *BulkOp) {
			w.send(&clwire.BulkLength{Op: read.ID, Bytes: 9})
			w.send(&clwire.BulkLength{Op: read.ID, Bytes: 8})
		},
		"a lane ends":             func(_ *fakeWorker, f *fakeFar, _, _, _ *BulkOp) { f.lane(1).Shutdown() },
		"the control stream ends": func(w *fakeWorker, _ *fakeFar, _, _, _ *BulkOp) { w.link.Shutdown() },
	} {
		t.Run(name, func(t *testing.T) {
			r, f := openFar(t, false, false)
			ops := []*BulkOp{{}, {Write: true, Held: true}, {}}
			memories := []*memory{{bytes: make([]byte, size)}, {bytes: make([]byte, size)},
				{bytes: make([]byte, size), row: 10}}
			for i, o := range ops {
				r.bulk(o, memories[i])
			}
			blocked := make(chan struct{})
			go func() { // by the caller's thread, until the worker is gone
				ops[1].Send(true)
				close(blocked)
			}()
			prompt := r.c.ReadPromptly()
			defer prompt()
			say(r.w(), f, ops[0], ops[1], ops[2])
			r.lost()
			<-blocked
			for i, o := range ops {
				if r.is(o, memories[i], outOfResources); !bytes.Equal(memories[i].bytes, make([]byte, size)) {
					t.Error("the program's memory was changed")
				}
			}
			if (&BulkOp{b: r.c.bulk}).Register() {
				t.Error("an operation begins with a worker that is gone")
			}
			r.gone()
		})
	}
}

// A read that promises more than it brought fails.
func TestDoneTooEarly(t *testing.T) {
	r, _ := openFar(t, false, false)
	o, m := &BulkOp{Inline: true}, &memory{bytes: make([]byte, 100)}
	r.bulk(o, m)
	r.w().send(clwire.NewBulkData(o.ID, 0, []byte{1, 2}))
	r.w().send(&clwire.BulkDone{Op: o.ID})
	r.is(o, m, outOfResources)
}

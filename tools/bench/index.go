package main

import (
	"context"
	"fmt"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/store/object"
)

// Get + release through the index in shared memory takes at most so long (p50, ns).
const indexReach = 500

// A clock read costs a tenth of what is measured: so many calls go between two.
const indexCalls = 16

// indexBenchmarks measures get + release through the index in shared memory, from Go and C, against its reach, and how
// its cost changes with the size of the object and with the number of objects.
func indexBenchmarks(r *rig) (list []benchmark) {
	for _, size := range []struct {
		name  string
		bytes uint64
	}{{"64B", 64}, {"1MiB", shared}, {"1GiB", largest}} {
		list = append(list, benchmark{name: "store/get+release/size=" + size.name + "/path=index/client=go", unit: "ns",
			against: "0.5 µs", atMost: 1,
			measure: func() (float64, float64, error) {
				v, err := r.indexed(size.bytes)
				return v, indexReach, err
			}}, benchmark{name: "store/get+release/size=" + size.name + "/path=index/client=c", unit: "ns",
			against: "0.5 µs", atMost: 1,
			measure: func() (float64, float64, error) {
				v, err := r.cIndexed.ask("get_release_" + size.name)
				return v, indexReach, err
			}})
	}
	return append(list,
		benchmark{name: "store/get+release/size=1GiB/path=index/flat", unit: "ns", against: "64 B", atMost: 1.25,
			measure: func() (float64, float64, error) {
				ref, err := r.indexed(64)
				if err != nil {
					return 0, 0, err
				}
				v, err := r.indexed(largest)
				return v, ref, err
			}},
		benchmark{name: "store/get+release/objects=100000/path=index", unit: "ns",
			against: "a look-up in a Go map of as many", atMost: 4,
			measure: func() (float64, float64, error) { return r.indexedAmong(100_000) }},
	)
}

// indexReader opens the connection that gets through the index, once.
func (r *rig) indexReader() (_ *client.Conn, err error) {
	if r.viaIndex == nil {
		if r.viaIndex, err = client.Dial(context.Background(), client.Options{Socket: r.socket,
			Index: client.IndexOn}); err != nil {
			return nil, err
		}
		r.atEnd(func() { r.viaIndex.Close() })
	}
	return r.viaIndex, admin.Of(r.viaIndex).IndexState(context.Background())
}

// indexed measures get + release of an object of so many bytes, which another connection made.
func (r *rig) indexed(bytes uint64) (float64, error) {
	reader, err := r.indexReader()
	if err != nil {
		return 0, err
	}
	writer, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return 0, err
	}
	defer writer.Close()
	b, err := writer.Create(context.Background(), bytes, client.CreateOptions{})
	if err != nil {
		return 0, err
	}
	o, err := b.Seal(context.Background())
	if err != nil {
		return 0, err
	}
	defer o.Release()
	if err := warm(reader, o.ID()); err != nil {
		return 0, err
	}
	return batches(func(int) error { return getOnce(reader, o.ID(), bytes) })
}

// indexedAmong measures get + release among so many objects of 64 bytes, all of which it gets in turn, in an order that
// has nothing to do with that of their making, so that few of their records are in a cache; and beside it a look-up in
// a map of as many, which meets the same caches.
func (r *rig) indexedAmong(n int) (index, inMap float64, err error) {
	reader, err := r.indexReader()
	if err != nil {
		return 0, 0, err
	}
	if r.objects == nil {
		if err := r.makeObjects(n); err != nil {
			return 0, 0, err
		}
		for _, id := range r.objects {
			if err := warm(reader, id); err != nil {
				return 0, 0, err
			}
		}
	}
	known := make(map[object.ID]*[24]uint64, n)
	for _, id := range r.objects {
		known[id] = &[24]uint64{1}
	}
	at := func(i int) object.ID { return r.objects[i*7919%n] }
	if inMap, err = batches(func(i int) error {
		if known[at(i)][0] != 1 {
			return fmt.Errorf("object %s is not in the map", at(i))
		}
		return nil
	}); err != nil {
		return 0, 0, err
	}
	index, err = batches(func(i int) error { return getOnce(reader, at(i), 64) })
	return index, inMap, err
}

func (r *rig) makeObjects(n int) error {
	c, err := client.Dial(context.Background(), client.Options{Socket: r.socket})
	if err != nil {
		return err
	}
	r.atEnd(func() { c.Close() })
	for range n {
		o, err := c.Put(context.Background(), make([]byte, 64), client.CreateOptions{})
		if err != nil {
			return err
		}
		r.objects = append(r.objects, o.ID())
	}
	return nil
}

// warm gets an object until that goes through the index: the first time it brings its segment's mapping, and a level of
// the index may still be on its way.
func warm(c *client.Conn, id object.ID) error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		o, err := c.Get(context.Background(), id, 0)
		if err != nil {
			return err
		}
		through := o.ThroughIndex()
		o.Release()
		if through {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("object %s does not come through the index", id)
		}
	}
}

func getOnce(c *client.Conn, id object.ID, bytes uint64) error {
	o, err := c.Get(context.Background(), id, 0)
	if err != nil {
		return err
	}
	if !o.ThroughIndex() || uint64(len(o.Bytes())) != bytes {
		return fmt.Errorf("object of %d bytes; through the index: %v", len(o.Bytes()), o.ThroughIndex())
	}
	o.Release()
	return nil
}

// batches gives the median time of a call, of as many as perCall's times indexCalls.
func batches(call func(i int) error) (float64, error) {
	i := 0
	ns, err := perCall(calls, func() error {
		for range indexCalls {
			if err := call(i); err != nil {
				return err
			}
			i++
		}
		return nil
	})
	return ns / indexCalls, err
}

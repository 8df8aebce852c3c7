package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	tendril "tendril/client"
	"tendril/store/object"
)

// clientVariable makes this program a client of the store and holds its seed.
const clientVariable = "TENDRIL_SOAK_CLIENT"

// worker is one client process: it does what comes until its standard input ends. Every object's first byte says the rest.
type worker struct {
	conn *tendril.Conn
	rng  *rand.Rand
	held []*tendril.Object
	over atomic.Bool
}

func clientMain() error {
	seed, err := strconv.ParseUint(os.Getenv(clientVariable), 10, 64)
	if err != nil {
		return err
	}
	conn, err := tendril.Dial("")
	if err != nil {
		return err
	}
	defer conn.Close()
	w := &worker{conn: conn, rng: rand.New(rand.NewPCG(seed, 1))}
	go func() { // ends with the process
		io.Copy(io.Discard, os.Stdin)
		w.over.Store(true)
	}()
	steps := []func() error{w.put, w.put, w.put, w.get, w.get, w.compose, w.stream, w.fill, w.forget, w.alter}
	for !w.over.Load() {
		err := steps[w.rng.IntN(len(steps))]()
		switch {
		case err == nil:
		case errors.Is(err, object.ErrFull), errors.Is(err, object.ErrQuota):
			w.forgetAll()
		case expected(err):
		default:
			return err
		}
		if len(w.held) > 40 {
			w.forgetAll()
		}
	}
	w.forgetAll()
	return nil
}

// expected are the answers that other clients' doings explain.
func expected(err error) bool {
	for _, e := range []error{object.ErrNotFound, object.ErrNotSealed, object.ErrExists, object.ErrTimeout, object.ErrAborted, object.ErrEnded, object.ErrSealed, object.ErrBusy, object.ErrInvalid} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (w *worker) name() string { return "n" + strconv.Itoa(w.rng.IntN(200)) }

func fillBytes(b []byte, first byte) {
	for i := range b {
		b[i] = first + byte(i>>10)
	}
}

// right compares an object's bytes with its first one.
func right(o *tendril.Object) error {
	b := o.Bytes()
	for i := range b {
		if b[i] != b[0]+byte(i>>10) {
			return fmt.Errorf("object %s of %d bytes differs at %d: %d, want %d", o.ID(), len(b), i, b[i], b[0]+byte(i>>10))
		}
	}
	return nil
}

func (w *worker) put() error {
	sizes := []uint64{1, 64, 4096, 50_000, 700_000, 3 << 20, 9 << 20}
	o := tendril.CreateOptions{Class: object.Class(w.rng.IntN(4)), Own: w.rng.IntN(5) == 0, Strict: w.rng.IntN(9) == 0}
	switch o.Class {
	case object.TTL:
		o.TTL = time.Duration(1+w.rng.IntN(800)) * time.Millisecond
	case object.Persisted:
		if w.rng.IntN(4) > 0 {
			o.Class = object.Ephemeral
		}
	}
	if o.Class == object.Named || w.rng.IntN(4) == 0 {
		o.Name = w.name()
	}
	b, err := w.conn.Create(sizes[w.rng.IntN(len(sizes))], o)
	if err != nil {
		return err
	}
	fillBytes(b.Bytes(), byte(w.rng.IntN(256)))
	if w.rng.IntN(10) == 0 {
		return b.Abort()
	}
	obj, err := b.Seal()
	if err != nil {
		return errors.Join(err, b.Abort())
	}
	if w.rng.IntN(3) == 0 {
		w.held = append(w.held, obj)
		return nil
	}
	obj.Release()
	return nil
}

func (w *worker) get() error {
	infos, err := w.conn.List("n", false)
	if err != nil || len(infos) == 0 {
		return err
	}
	info := infos[w.rng.IntN(len(infos))]
	o, err := w.conn.Get(context.Background(), info.ID, time.Second)
	if err != nil {
		return err
	}
	defer o.Release()
	if len(info.Members) > 0 {
		return nil
	}
	return right(o)
}

func (w *worker) compose() error {
	var members []object.Member
	for i, o := range w.held {
		if len(members) < 4 && w.rng.IntN(4) == 0 {
			members = append(members, object.Member{Name: strconv.Itoa(i), ID: o.ID()})
		}
	}
	if len(members) == 0 {
		return nil
	}
	o, err := w.conn.Compose(members, tendril.CreateOptions{Class: object.Named, Name: w.name()})
	if err == nil {
		o.Release()
	}
	return err
}

// stream pushes or pops some frames of a stream that all clients share.
func (w *worker) stream() error {
	ctx := context.Background()
	name := "s" + strconv.Itoa(w.rng.IntN(3))
	if w.rng.IntN(2) == 0 {
		writer, err := w.conn.OpenWriter(name, tendril.StreamOptions{Frames: 8, DropOldest: w.rng.IntN(4) == 0})
		if err != nil {
			return err
		}
		defer writer.Close()
		for range 1 + w.rng.IntN(20) {
			frame := make([]byte, 1+w.rng.IntN(60_000))
			fillBytes(frame, byte(w.rng.IntN(256)))
			if err := writer.Write(ctx, frame, nil, 5*time.Millisecond); err != nil {
				return err
			}
		}
		return writer.Flush(ctx)
	}
	reader, err := w.conn.OpenReader(name, tendril.StreamOptions{})
	if err != nil {
		return err
	}
	defer reader.Close()
	for range 1 + w.rng.IntN(20) {
		f, err := reader.Pop(ctx, 5*time.Millisecond)
		if err != nil {
			return err
		}
		err = right(f.Object)
		f.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// fill makes an object that another connection of this process helps to fill.
func (w *worker) fill() error {
	other, err := tendril.Dial("")
	if err != nil {
		return err
	}
	defer other.Close()
	b, err := w.conn.Create(100_000, tendril.CreateOptions{Shared: true})
	if err != nil {
		return err
	}
	part, err := other.Fill(b.ID(), "")
	if err != nil {
		return errors.Join(err, b.Abort())
	}
	fillBytes(part.Bytes(), 7)
	if err := part.Done(); err != nil {
		return errors.Join(err, b.Abort())
	}
	o, err := b.SealFilled(context.Background(), time.Second, false)
	if err != nil {
		return errors.Join(err, b.Abort())
	}
	defer o.Release()
	return right(o)
}

// alter renames, pins, persists or deletes something of anybody's.
func (w *worker) alter() error {
	infos, err := w.conn.List("n", false)
	if err != nil || len(infos) == 0 {
		return err
	}
	info := infos[w.rng.IntN(len(infos))]
	switch w.rng.IntN(5) {
	case 0:
		return w.conn.Bind(info.ID, w.name(), true)
	case 1:
		soon := time.Duration(1+w.rng.IntN(500)) * time.Millisecond
		return w.conn.Update(info.ID, tendril.Change{TTL: &soon})
	case 2:
		return w.conn.Share(info.ID, "all")
	default:
		return w.conn.Delete(info.ID)
	}
}

func (w *worker) forget() error {
	if len(w.held) > 0 {
		o := w.held[0]
		w.held = w.held[1:]
		defer o.Release()
		return right(o)
	}
	return nil
}

func (w *worker) forgetAll() {
	for _, o := range w.held {
		o.Release()
	}
	w.held = nil
}

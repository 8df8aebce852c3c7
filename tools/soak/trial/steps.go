package trial

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"tendril/client"
	"tendril/store/object"

	"github.com/cespare/xxhash/v2"
)

// act does one of the things that a lane can do.
func (l *lane) act() error {
	if l.Visitor && l.rng.IntN(2) == 0 {
		return l.churn()
	}
	if l.Visitor {
		return l.browse()
	}
	switch n := l.rng.IntN(100); {
	case n < 18:
		return l.get(l.own())
	case n < 34:
		return l.browse()
	case n < 54:
		return l.put1()
	case n < 60:
		return l.remove(l.own())
	case n < 65:
		return l.rename()
	case n < 68:
		return l.persist()
	case n < 72:
		return l.compose()
	case n < 84:
		return l.churn()
	case n < 86:
		return l.smalls()
	case n < 92:
		return l.contest()
	case n < 94:
		return l.sum()
	case n < 96:
		return l.pin()
	case n < 97:
		return l.stream()
	case n < 98:
		return l.fill()
	default:
		return l.share()
	}
}

// do writes a deed, does it and writes how it ended: f's error, where any call may have it, leaves it open or refused.
func (l *lane) do(d deed, f func() error) (done bool, err error) {
	if err := l.ledger.begin(d); err != nil {
		return false, err
	}
	err = f()
	end := endDone
	switch {
	case errors.Is(err, client.ErrDisconnected):
		end = endOpen
	case err != nil:
		end = endRefused
	}
	now := l.conn.Daemon().Incarnation
	another := now != l.ledger.now
	if another {
		l.mark = nil // notice makes it
	}
	if why := l.ledger.end(end, err, now); why != nil {
		return false, why
	}
	switch {
	case err == nil:
		return true, nil
	case l.turnedDown(d.Do, err), another && errors.Is(err, object.ErrNotFound): // it went with the daemon before
		return false, nil
	}
	return false, fmt.Errorf("%w: %s %s %s: %w", errFault, d.Do, d.Name, d.To, err)
}

// settled gives what one of the own names has, and asks where that is not known.
func (l *lane) settled(name string) (number uint64, known bool, err error) {
	if _, known := l.ledger.certain(name); !known {
		if err := l.get(name); err != nil {
			return 0, false, err
		}
	}
	number, known = l.ledger.certain(name)
	return number, known, nil
}

// get gets an own name: it must be there and right, or not, as the ledger has it.
func (l *lane) get(name string) error {
	o, err := l.conn.GetByName(background(), name, 0)
	if why := l.notice(); why != nil {
		return why
	}
	l.tally.Gets++
	var t *thing
	switch {
	case err == nil:
		var got thing
		if got, err = recognised(o); err != nil {
			return fmt.Errorf("%w: %q: %w", errFault, name, err)
		}
		t = &got
	case errors.Is(err, object.ErrNotFound):
	case l.turnedDown("get", err):
		return nil
	default:
		return fmt.Errorf("%w: get %q: %w", errFault, name, err)
	}
	if why := l.ledger.judge(name, t); why != nil {
		return fmt.Errorf("%w: %w (the get: %v)", errFault, why, err)
	}
	if c, known := l.ledger.certain(name); !known || t != nil && c != t.Number {
		if err := l.ledger.write(deed{Do: doSee, Name: name, Thing: t}); err != nil {
			return err
		}
	}
	if t == nil {
		return nil
	}
	if len(t.Members) > 0 {
		o.Release()
		return l.tree(o.ID(), *t, true)
	}
	l.keep(o, *t)
	return nil
}

// tree gets a composite and what it has. strict: it is there, and so are all of its members.
func (l *lane) tree(id object.ID, t thing, strict bool) error {
	tree, err := l.conn.GetTree(background(), id, 0)
	before := l.ledger.now
	if why := l.notice(); why != nil {
		return why
	}
	switch {
	case err == nil:
	case l.turnedDown("tree", err), errors.Is(err, object.ErrNotFound) && (!strict || before != l.ledger.now):
		return nil
	default:
		return fmt.Errorf("%w: composite %s, number %d: %w", errFault, id, t.Number, err)
	}
	defer tree.ReleaseAll()
	if len(tree.Members) != len(t.Members) {
		return fmt.Errorf("%w: composite %s, number %d, has %d members, was made of %d", errFault, id, t.Number,
			len(tree.Members), len(t.Members))
	}
	for i, want := range t.Members {
		part := tree.Members[strconv.Itoa(i)]
		if part == nil {
			return fmt.Errorf("%w: composite %s, number %d: no member %d", errFault, id, t.Number, i)
		}
		got, err := recognised(part.Object)
		if err == nil && got.Number != want {
			err = fmt.Errorf("it is number %d, must be %d", got.Number, want)
		}
		if err != nil {
			return fmt.Errorf("%w: composite %s, number %d, member %d: %w", errFault, id, t.Number, i, err)
		}
	}
	return nil
}

// browse gets one name after the other: what is on disk comes back, and sends other objects there.
func (l *lane) browse() error {
	for range 1 + l.rng.IntN(20) {
		if err := l.getForeign(); err != nil {
			return err
		}
	}
	return nil
}

// getForeign gets another lane's name, or one of all lanes': there may be none; what there is is right.
func (l *lane) getForeign() error {
	name := l.foreign()
	if l.rng.IntN(4) == 0 {
		name = l.contested()
	}
	if laneOf(name) == l.Lane {
		return l.get(name)
	}
	o, err := l.conn.GetByName(background(), name, time.Duration(l.rng.IntN(2))*time.Millisecond)
	l.tally.Gets++
	switch {
	case err == nil:
	case errors.Is(err, object.ErrNotFound), errors.Is(err, object.ErrTimeout), l.turnedDown("get", err):
		return nil
	default:
		return fmt.Errorf("%w: get %q: %w", errFault, name, err)
	}
	t, err := recognised(o)
	if err == nil && laneOf(name) >= 0 && laneOf(name) != int(t.Number>>laneShift)-1 {
		err = fmt.Errorf("number %d is another lane's", t.Number)
	}
	if err != nil {
		return fmt.Errorf("%w: %q: %w", errFault, name, err)
	}
	if len(t.Members) > 0 {
		o.Release()
		return l.tree(o.ID(), t, false)
	}
	l.keep(o, t)
	return nil
}

// put1 puts an object under one of the own names.
func (l *lane) put1() error {
	name := l.own()
	number, known, err := l.settled(name)
	if err != nil || !known {
		return err
	}
	if l.ledger.liveBytes() > l.LiveBytes {
		return l.remove(name)
	}
	t := l.fresh(object.Named)
	if l.rng.IntN(12) == 0 {
		t.Class = object.Persisted
	}
	o := client.CreateOptions{Own: l.rng.IntN(6) == 0, Strict: l.rng.IntN(9) == 0}
	d := deed{Do: doPut, Name: name, Thing: t}
	if number != 0 {
		d.Do = doReplace
	} else {
		o.Name = name
	}
	_, err = l.do(d, func() error {
		if number != 0 && t.Class == object.Named {
			t.Class = object.Ephemeral // until it has the name
			defer func() { t.Class = object.Named }()
		}
		obj, _, err := l.put(t, o)
		if err != nil {
			return err
		}
		if number != 0 {
			err = l.conn.Bind(context.Background(), obj.ID(), name, true)
		}
		if err != nil {
			obj.Release()
			return err
		}
		l.keep(obj, *t)
		return nil
	})
	return err
}

// remove deletes one of the own names.
func (l *lane) remove(name string) error {
	number, known, err := l.settled(name)
	if err != nil || !known {
		return err
	}
	if number == 0 {
		if err := l.conn.DeleteByName(context.Background(), name); err != nil && !errors.Is(err, object.ErrNotFound) &&
			!l.turnedDown("delete", err) {
			return fmt.Errorf("%w: delete of %q, which is not there: %w", errFault, name, err)
		}
		return nil
	}
	_, err = l.do(deed{Do: doDelete, Name: name}, func() error {
		return l.conn.DeleteByName(context.Background(), name)
	})
	return err
}

// rename gives an object of the own ones another name, whoever has that.
func (l *lane) rename() error {
	from, to := l.own(), l.own()
	number, known, err := l.settled(from)
	if err != nil || !known || number == 0 || from == to {
		return err
	}
	_, err = l.do(deed{Do: doRename, Name: from, To: to}, func() error {
		return l.conn.Rename(context.Background(), from,
			to, true)
	})
	return err
}

// persist puts an own object on disk for good.
func (l *lane) persist() error {
	name := l.own()
	number, known, err := l.settled(name)
	if err != nil || !known || number == 0 || len(l.ledger.things[number].Members) > 0 {
		return err
	}
	_, err = l.do(deed{Do: doPersist, Name: name}, func() error {
		info, err := l.conn.StatByName(context.Background(), name)
		if err == nil {
			err = l.conn.Update(context.Background(), info.ID, client.Change{Persist: true})
		}
		if errors.Is(err, object.ErrBusy) { // on its way to disk: try again, it says
			l.tally.Refused["persist: busy"]++
			return client.ErrDisconnected
		}
		return err
	})
	return err
}

// compose makes a composite of what is held, under one of the own names.
func (l *lane) compose() error {
	name := l.own()
	number, known, err := l.settled(name)
	if err != nil || !known || number != 0 {
		return err
	}
	t := l.fresh(object.Named)
	t.Size = 0
	var members []object.Member
	for _, h := range l.held {
		if len(members) < 5 && !h.Gone() && h.thing.Size > 0 && l.rng.IntN(3) == 0 {
			members = append(members, object.Member{Name: strconv.Itoa(len(members)), ID: h.ID()})
			t.Members = append(t.Members, h.Number)
		}
	}
	if len(members) == 0 {
		return nil
	}
	_, err = l.do(deed{Do: doPut, Name: name, Thing: t}, func() error {
		o, err := l.conn.Compose(context.Background(), members, client.CreateOptions{Name: name, Class: object.Named,
			Meta: t.meta()})
		if errors.Is(err, object.ErrNotFound) { // deleted, and only held
			l.tally.Refused["compose: deleted"]++
			return object.ErrFull
		}
		if err == nil {
			o.Release()
		}
		return err
	})
	return err
}

// churn puts objects that nobody else knows, some given up, some held.
func (l *lane) churn() error {
	for range 1 + l.rng.IntN(8) {
		t := l.fresh(object.Ephemeral)
		o, _, err := l.put(t, client.CreateOptions{})
		if err != nil && !l.turnedDown("churn", err) {
			return fmt.Errorf("%w: put: %w", errFault, err)
		}
		if err != nil {
			return nil
		}
		l.keep(o, *t)
	}
	return nil
}

// smalls puts many small objects into segments that they share with others.
func (l *lane) smalls() error {
	for range 30 {
		t := l.fresh(object.Ephemeral)
		t.Size = 64
		o, _, err := l.put(t, client.CreateOptions{})
		if err != nil && !l.turnedDown("small", err) {
			return fmt.Errorf("%w: put: %w", errFault, err)
		}
		if err != nil {
			return nil
		}
		l.keep(o, *t)
	}
	return nil
}

// contest does with a name that all lanes change what comes.
func (l *lane) contest() error {
	name := l.contested()
	var err error
	switch l.rng.IntN(5) {
	case 0:
		err = l.conn.DeleteByName(context.Background(), name)
	case 1:
		err = l.conn.Rename(context.Background(), name, l.contested(), l.rng.IntN(2) == 0)
	default:
		t := l.fresh([]object.Class{object.Named, object.Named, object.Persisted, object.TTL}[l.rng.IntN(4)])
		o := client.CreateOptions{Name: name}
		if t.Class == object.TTL {
			o.TTL = time.Duration(1+l.rng.IntN(800)) * time.Millisecond
		}
		replace := l.rng.IntN(2) == 0
		if replace && t.Class != object.Persisted {
			t.Class, o = object.Ephemeral, client.CreateOptions{}
		} else if replace {
			o.Name = ""
		}
		var obj *client.Object
		if obj, _, err = l.put(t, o); err == nil {
			if replace {
				err = l.conn.Bind(context.Background(), obj.ID(), name, true)
			}
			l.keep(obj, *t)
		}
	}
	if err == nil || errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrExists) ||
		l.turnedDown("contest", err) {
		return nil
	}
	return fmt.Errorf("%w: %q: %w", errFault, name, err)
}

// sum has the daemon read an own object, in memory or on disk.
func (l *lane) sum() error {
	name := l.own()
	number, known, err := l.settled(name)
	if err != nil || !known || number == 0 || len(l.ledger.things[number].Members) > 0 {
		return err
	}
	before := l.conn.Daemon().Incarnation
	info, err := l.conn.StatByName(context.Background(), name)
	var have uint64
	if err == nil {
		have, err = l.conn.Checksum(context.Background(), info.ID)
	}
	switch {
	case err == nil:
	case l.turnedDown("sum", err), errors.Is(err, object.ErrNotFound) && before != l.conn.Daemon().Incarnation:
		return nil
	default:
		return fmt.Errorf("%w: checksum of %q: %w", errFault, name, err)
	}
	t := l.ledger.things[number]
	want := make([]byte, t.Size)
	t.fill(want)
	if info.SizeBytes != t.Size || have != xxhash.Sum64(want) {
		if c, _ := l.ledger.certain(name); before == l.conn.Daemon().Incarnation && c == number {
			return fmt.Errorf("%w: %q, number %d: the daemon's checksum is %016x, of %d bytes; must be %016x, of %d",
				errFault, name, number, have, info.SizeBytes, xxhash.Sum64(want), t.Size)
		}
	}
	return nil
}

// pin keeps an own object in memory, or lets it go to disk again; mostly the latter.
func (l *lane) pin() error {
	name := l.own()
	info, err := l.conn.StatByName(context.Background(), name)
	if err == nil {
		pinned := l.rng.IntN(5) == 0 && info.SizeBytes < 100_000
		err = l.conn.Update(context.Background(), info.ID, client.Change{Pinned: &pinned})
	}
	if err == nil || errors.Is(err, object.ErrNotFound) || l.turnedDown("pin", err) {
		return nil
	}
	return fmt.Errorf("%w: pin %q: %w", errFault, name, err)
}

// share lets others read an object, which moves it to a segment of its own, or ends that.
func (l *lane) share() error {
	name := l.own()
	info, err := l.conn.StatByName(context.Background(), name)
	if err == nil && l.rng.IntN(2) == 0 {
		err = l.conn.Share(context.Background(), info.ID, "all")
	} else if err == nil {
		err = l.conn.Unshare(context.Background(), info.ID, "all")
	}
	if err == nil || errors.Is(err, object.ErrNotFound) || l.turnedDown("share", err) {
		return nil
	}
	return fmt.Errorf("%w: share %q: %w", errFault, name, err)
}

// stream pushes or pops some frames of a stream that all lanes share.
func (l *lane) stream() error {
	name := "frames-" + strconv.Itoa(l.rng.IntN(2))
	err := l.push(name)
	if l.rng.IntN(2) == 0 {
		err = l.pop(name)
	}
	for _, e := range []error{object.ErrTimeout, object.ErrEnded, object.ErrAborted, object.ErrNotFound} {
		if errors.Is(err, e) {
			return nil
		}
	}
	if err == nil || l.turnedDown("stream", err) {
		return nil
	}
	return fmt.Errorf("%w: stream %q: %w", errFault, name, err)
}

func (l *lane) push(name string) error {
	w, err := l.conn.OpenWriter(context.Background(), name, client.StreamOptions{Frames: 8, DropOldest: true})
	if err != nil {
		return err
	}
	defer w.Close(context.Background())
	for range 1 + l.rng.IntN(10) {
		t := l.fresh(object.Ephemeral)
		b, err := w.Buffer(context.Background(), t.Size)
		if err != nil {
			return err
		}
		t.fill(b.Bytes())
		if err := w.Push(background(), b, t.meta(), time.Millisecond); err != nil {
			return errors.Join(err, b.Abort(context.Background()))
		}
	}
	return nil
}

func (l *lane) pop(name string) error {
	r, err := l.conn.OpenReader(context.Background(), name, client.StreamOptions{})
	if err != nil {
		return err
	}
	defer r.Close(context.Background())
	for range 1 + l.rng.IntN(10) {
		f, err := r.Pop(background(), time.Millisecond)
		if err != nil {
			return err
		}
		t, err := recognised(f.Object)
		if err != nil {
			f.Release()
			return fmt.Errorf("%w: frame %d: %w", errFault, f.Number, err)
		}
		l.keep(f.Object, t)
	}
	return nil
}

// fill makes an object that another connection of this process helps to fill.
func (l *lane) fill() error {
	err := l.fillBoth(l.fresh(object.Ephemeral))
	if err == nil || l.turnedDown("fill", err) {
		return nil
	}
	return fmt.Errorf("%w: filled by two: %w", errFault, err)
}

func (l *lane) fillBoth(t *thing) error {
	other, err := client.Dial(context.Background(), client.Options{})
	if err != nil {
		return err
	}
	defer other.Close()
	b, err := l.conn.Create(context.Background(), t.Size, client.CreateOptions{Shared: true, Meta: t.meta()})
	if err != nil {
		return err
	}
	part, err := other.Fill(context.Background(), b.ID(), "")
	if err != nil {
		return errors.Join(lost(err), b.Abort(context.Background()))
	}
	t.fill(part.Bytes())
	if err := part.Done(context.Background()); err != nil {
		return errors.Join(lost(err), b.Abort(context.Background()))
	}
	o, err := b.SealFilled(background(), time.Minute, false)
	if err != nil {
		return errors.Join(lost(err), b.Abort(context.Background()))
	}
	l.keep(o, *t)
	return nil
}

// lost makes what a connection of two says whose object went with the other's daemon what it is.
func lost(err error) error {
	if errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrAborted) {
		return fmt.Errorf("%w: %w", client.ErrDisconnected, err)
	}
	return err
}

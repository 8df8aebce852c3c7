package transfer

import (
	"fmt"
	"testing"
)

// sizes are the classes of sizes: each limit, and one byte more.
var sizes = []uint64{
	0, 1, SharedInline, SharedInline + 1, 32 << 10, 32<<10 + 1, StagedBytes, StagedBytes + 1, RecordBytes,
	RecordBytes + 1, DirectBytes - 1, DirectBytes, StagedDeviceBytes, StagedDeviceBytes + 1, ChunkBytes, ChunkBytes + 1,
}

// flags are the request's conditions.
func flags(r *Request) []*bool {
	return []*bool{
		&r.Write, &r.InPlace, &r.Special, &r.Pinned, &r.Blocking, &r.Idle, &r.Unordered, &r.Event,
		&r.Timed, &r.Settled,
		&r.FitsInline, &r.Visible, &r.NoStaging,
	}
}

// possible says whether package session can ask so.
func possible(r *Request) bool {
	switch {
	// an object's memory is mapped here
	case r.Memory == Shared && !r.InPlace && r.Purpose != Own, r.Memory == Remote && r.InPlace,
		r.InPlace && r.Memory == Device && r.Layout != Image,
		r.Layout == Image && r.Memory == Shared && r.Purpose == Command,
		r.Memory == Program && (r.Purpose != Map || r.Write || r.Size == 0):
		return false
	case r.Timed && !r.Event, r.Settled && !r.Write, r.NoStaging && r.Memory == Remote:
		return false
	case r.Visible && !(r.Purpose == Command && r.Write && r.Blocking && (r.Memory == Remote || r.Memory == Device)):
		return false
	case !r.Visible && r.Event && r.unseen(): // which shows that it is under way
		return false
	case r.Purpose == Own:
		return r.Blocking && r.Idle && !r.Timed && !r.Event && r.Waits == 0 && !r.Pinned
	case r.Purpose == Map:
		return !(r.Write && r.Blocking) && (r.Memory != Shared || r.Size == 0) &&
			(!r.Pinned || r.Layout == Contiguous && r.Memory == Device && !r.InPlace)
	}
	return (!r.Pinned || r.Memory == Device && r.Size >= DirectBytes) && (r.Size > 0 || r.Layout == Contiguous)
}

// every calls f with each request that there can be.
func every(f func(r *Request)) {
	for purpose := Command; purpose <= Own; purpose++ {
		for layout := Contiguous; layout <= Image; layout++ {
			for memory := Shared; memory <= Program; memory++ {
				for _, size := range sizes {
					for _, waits := range []int{0, 1, 64} {
						r := Request{Purpose: purpose, Layout: layout, Memory: memory, Size: size, Waits: waits}
						everyFlag(&r, flags(&r), f)
					}
				}
			}
		}
	}
}

func everyFlag(r *Request, left []*bool, f func(r *Request)) {
	if len(left) == 0 {
		if possible(r) {
			f(r)
		}
		return
	}
	for _, value := range []bool{false, true} {
		*left[0] = value
		everyFlag(r, left[1:], f)
	}
}

// TestOneRowMatches: every request matches one row alone, and every row some request.
func TestOneRowMatches(t *testing.T) {
	var used [len(rows)]int
	faults, asked := 0, 0
	every(func(r *Request) {
		asked++
		n, facts := 0, r.facts()
		for i := range rows {
			if rows[i].matches(facts) {
				used[i]++
				n++
			}
		}
		if n != 1 {
			if faults++; faults < 10 {
				t.Errorf("%d rows match %+v", n, *r)
			}
		}
	})
	for i, n := range used {
		if n == 0 {
			t.Errorf("nothing matches row %d, %s: %s", i, rows[i].Way, rows[i].Why)
		}
	}
	t.Logf("%d requests", asked)
}

// String implements fmt.Stringer.
func (w Way) String() string {
	if int(w) < len(ways) {
		return ways[w].name
	}
	return fmt.Sprintf("way %d", uint8(w))
}

//go:build cgo

package worker

import (
	"strings"
	"testing"

	"tendril/forwarding/clwire"
)

// TestEveryRecordHasARow: what a client sends and the link does not take itself has a row.
func TestEveryRecordHasARow(t *testing.T) {
	others := map[clwire.Type]bool{clwire.TypePad: true, clwire.TypeAck: true, clwire.TypeLeave: true,
		clwire.TypePulse: true, clwire.TypePeerWord: true, clwire.TypePeerBytes: true}
	for typ := range clwire.TypeReply {
		named := !strings.HasPrefix(typ.String(), "type ")
		if has := rows[typ].handle != nil; has != (named && !others[typ]) {
			t.Errorf("%v: a row %v", typ, has)
		}
	}
}

// TestRecordsAreDecodedInPlace: a record that comes again allocates no message.
func TestRecordsAreDecodedInPlace(t *testing.T) {
	s, seen := &session{greeted: true, rows: &rows}, uint64(0)
	handle := reused(func(_ *session, _ clwire.Header, m *clwire.Wait) error { seen += m.Events[0]; return nil })
	payload := (&clwire.Wait{Events: []uint64{1, 2}}).Append(nil)
	h := clwire.Header{Type: clwire.TypeWait}
	if n := testing.AllocsPerRun(100, func() {
		if err := handle(s, h, payload); err != nil {
			t.Fatal(err)
		}
	}); n != 0 || seen != 101 {
		t.Errorf("%v allocations a record, %d seen", n, seen)
	}
}

// TestSlicesOfAMessageAreKept: what a handler keeps of one record is not written by the next.
func TestSlicesOfAMessageAreKept(t *testing.T) {
	s := &session{greeted: true, rows: &rows}
	var kept [][]uint64
	handle := on(func(_ *session, _ clwire.Header, m *clwire.Wait) error { kept = append(kept, m.Events); return nil })
	for i := range uint64(2) {
		payload := (&clwire.Wait{Events: []uint64{i}}).Append(nil)
		if err := handle(s, clwire.Header{Type: clwire.TypeWait}, payload); err != nil {
			t.Fatal(err)
		}
	}
	if kept[0][0] != 0 || kept[1][0] != 1 {
		t.Errorf("kept %v", kept)
	}
}

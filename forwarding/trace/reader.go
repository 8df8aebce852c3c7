package trace

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Capture is what a buffer held.
type Capture struct {
	Records []Record        // oldest first
	Texts   map[uint32]Text // by number
	// Lost is how many records were overwritten; Torn how many were being written, or never finished; TextsLost
	// how many names found no room.
	Lost, Torn, TextsLost uint64
}

// Read copies what a buffer holds, also while programs append.
func Read(f *os.File) (*Capture, error) {
	mem, slots, err := mapBuffer(f, unix.PROT_READ)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Munmap(mem) }() // fails only for a range that is not mapped
	return capture(mem, slots), nil
}

// Recorded is how many records were ever begun.
func Recorded(f *os.File) (uint64, error) {
	var b [8]byte
	if _, err := f.ReadAt(b[:], headAt); err != nil {
		return 0, fmt.Errorf("trace buffer: %w", err)
	}
	return le.Uint64(b[:]), nil
}

func capture(mem []byte, slots uint64) *Capture {
	c := &Capture{Texts: texts(mem), TextsLost: cell(mem, textLostAt).Load()}
	head := cell(mem, headAt).Load()
	first := uint64(0)
	if head > slots {
		first = head - slots
		c.Lost = first
	}
	c.Records = make([]Record, 0, head-first)
	all := words(mem[SlotsAt:])
	for n := first; n < head; n++ {
		at := int(n&(slots-1)) * slotWords
		done := cell(mem, SlotsAt+8*at)
		if done.Load() != n+1 {
			c.Torn++
			continue
		}
		var w [slotWords]uint64
		copy(w[:], all[at:at+slotWords])
		if done.Load() != n+1 {
			c.Torn++
			continue
		}
		c.Records = append(c.Records, recordOf(&w))
	}
	return c
}

func texts(mem []byte) map[uint32]Text {
	found := map[uint32]Text{}
	end := min(cell(mem, textTailAt).Load(), TextBytes)
	b := mem[headerBytes : headerBytes+int(end)]
	for at := 0; at+textHead <= len(b); {
		n := int(halfCell(b, at).Load())
		if n == 0 || n-1 > maxText || at+textHead+n-1 > len(b) {
			break // its writer died over it, or something wrote here that should not
		}
		n--
		e := b[at:]
		found[uint32(at)+1] = Text{
			Kind: TextKind(le.Uint32(e[4:])), ID: le.Uint64(e[8:]), PID: le.Uint32(e[16:]),
			Text: string(e[textHead : textHead+n]),
		}
		at += (textHead + n + 7) &^ 7
	}
	return found
}

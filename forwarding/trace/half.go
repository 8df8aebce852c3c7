package trace

// WorkerHalf is a command as its worker saw it: KindCommand and KindDevice say what the times are.
type WorkerHalf struct {
	Worker                    uint32
	Queue                     uint64
	Seq                       uint32 // its number in the queue
	Type, Device              uint16
	Status                    int32
	Profiled                  bool
	Taken, Begun, Given, Seen int64
	Times                     [4]int64 // of the device
}

// LostNote is the note of a worker that could not keep up.
const LostNote = "times: the worker could not keep those of some commands"

// AppendTo writes both records.
func (h *WorkerHalf) AppendTo(w *Writer) {
	command := Record{Kind: KindCommand, Code: h.Type, Aux: h.Worker,
		Time: h.Taken, X: h.Begun, A: uint64(h.Given), B: h.Queue, C: uint64(h.Seq) | uint64(uint32(h.Status))<<32}
	device := Record{Kind: KindDevice, Code: h.Device, Aux: h.Worker,
		Time: h.Times[0], X: h.Times[1], A: uint64(h.Times[2]), B: uint64(h.Times[3]), C: uint64(h.Seen)}
	if h.Profiled {
		device.Flags = FlagProfiled
	}
	w.AppendPair(&command, &device)
}

package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"tendril/forwarding/clwire"
)

// CheckOptions says which memory of a GPU Check has, and what it does with it.
type CheckOptions struct {
	Memory *os.File // the descriptor
	Driver string   // path or name of the CUDA driver
	Device string   // UUID of the GPU
	Bytes  uint64   // of the allocation
	Write  string   // written to its begin; "": nothing
	Read   int      // how many bytes of its begin are read
}

// Checked is what Check found, as JSON.
type Checked struct {
	ImportNS int64  `json:"import_ns"` // to import and map, the driver loaded and the GPU in use before
	Text     string `json:"text"`      // what was read
}

// mostRead bounds CheckOptions.Read.
const mostRead = 4096

// Check is a process that has memory of a GPU, as any program does that got an object: it imports and maps it, writes
// or reads a text there, and says so on out. tendril doctor runs it.
func Check(o CheckOptions, out io.Writer) error {
	defer o.Memory.Close()
	if o.Read < 0 || o.Read > mostRead {
		return fmt.Errorf("%d bytes to be read, want 0 to %d", o.Read, mostRead)
	}
	k := newKeeper(Options{Driver: o.Driver})
	if err := k.load(); err != nil {
		return err
	}
	if _, err := k.use(o.Device); err != nil { // makes the context, which takes long
		return err
	}
	var p place
	began := time.Now()
	if err := k.mapDevice(&p, clwire.KeeperPlace{Device: o.Device, Bytes: o.Bytes}, int(o.Memory.Fd())); err != nil {
		return err
	}
	found := Checked{ImportNS: time.Since(began).Nanoseconds()}
	text := make([]byte, o.Read)
	err := p.device.Write(0, []byte(o.Write))
	if err == nil {
		err = p.device.Read(text, 0)
	}
	if err = errors.Join(err, p.free()); err != nil {
		return err
	}
	found.Text = string(text)
	return json.NewEncoder(out).Encode(&found)
}

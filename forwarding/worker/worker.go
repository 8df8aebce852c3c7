package worker

import (
	"errors"
	"os"
)

// Options say what a worker or a probe process is to do.
type Options struct {
	ICD       string   // file that names the driver
	Platform  int      // index of the platform inside that driver
	CacheDir  string   // the only directory it may write; kernel caches live there
	Only      []int    // places in the driver's list of the devices that there are; nil: all
	Import    string   // of a probe: UUID of a GPU, whose Memory it has the driver import; it may not survive that
	Memory    *os.File // clwire.LargeImport bytes of that GPU, or nil
	NoInPlace bool     // no device computes on segments, whatever it could; each queue has a submitting thread
	Control   *os.File // worker: SOCK_SEQPACKET to the daemon. Probe: a pipe for the ProbeResult
}

// Validate reports everything that is wrong with o.
func (o *Options) Validate() error {
	var errs []error
	if o.ICD == "" {
		errs = append(errs, errors.New("no driver file (--icd FILE)"))
	}
	if o.CacheDir == "" {
		errs = append(errs, errors.New("no cache directory (--cache DIR)"))
	}
	if o.Platform < 0 {
		errs = append(errs, errors.New("the platform's index is negative (--platform N)"))
	}
	if (o.Import == "") != (o.Memory == nil) {
		errs = append(errs, errors.New("a GPU to import memory of and its memory go together (--import UUID)"))
	}
	if o.Control == nil {
		errs = append(errs, errors.New("no control descriptor"))
	}
	return errors.Join(errs...)
}

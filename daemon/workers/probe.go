package workers

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// Bounds of what a probe may say.
const (
	maxProbeBytes = 16 << 20
	maxPlatforms  = 16  // of one driver
	maxDevices    = 256 // of one platform
	maxNameBytes  = 256 // of a platform, as shown

)

// probe runs `tendril probe` on one driver, as a tenant's workers run. A driver that crashes, hangs or talks nonsense
// is an error that says so.
func (p *Pool) probe(d Driver, tenant string) ([]*Platform, []clwire.Fallback, error) {
	raw, err := p.runProbe(d, tenant, nil)
	if err != nil {
		return nil, nil, err
	}
	return parseProbe(p.opts.Node, d, raw)
}

// runProbe gives what a probe with these further arguments writes. One that does not end well is an error. memory may
// be nil, and stays the caller's.
func (p *Pool) runProbe(d Driver, tenant string, memory *os.File, more ...string) ([]byte, error) {
	u, cache, err := p.home(tenant)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	argv := append(append(p.opts.argv("probe"), "--icd", d.ICD, "--cache", cache), more...)
	c := command{tenant: tenant, argv: argv, env: workerEnv(cache, nil), user: u, limits: p.opts.Limits, extra: w,
		memory: memory}
	proc, err := p.launch(c, p.opts.Log.WithField("probe", d.ICD))
	w.Close()
	if err != nil {
		return nil, err
	}
	defer func() { proc.kill(); proc.wait() }()
	if !p.track(proc) {
		return nil, errClosed
	}
	defer p.untrack(proc)
	return p.readProbe(r, proc)
}

// readProbe reads the probe's answer to its end, which is the process's too, within the time limit.
func (p *Pool) readProbe(r *os.File, proc *process) ([]byte, error) {
	limit := p.opts.ProbeTimeout
	timer := time.AfterFunc(limit, proc.kill)
	defer timer.Stop()
	_ = r.SetReadDeadline(time.Now().Add(limit + stderrGrace)) // in case a descendant holds the pipe
	raw, err := io.ReadAll(io.LimitReader(r, maxProbeBytes+1))
	if len(raw) > maxProbeBytes {
		return nil, fmt.Errorf("the probe wrote more than %d bytes", maxProbeBytes)
	}
	slow := errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil && !slow {
		return nil, err
	}
	if p.ctx.Err() != nil {
		return nil, errClosed
	}
	if slow || !proc.waitFor(stderrGrace+limit) || proc.wasKilled() {
		return nil, fmt.Errorf("the probe did not end within %v", limit)
	}
	if !proc.normal {
		return nil, errors.New("the probe " + proc.why())
	}
	return raw, nil
}

func parseProbe(node string, d Driver, raw []byte) ([]*Platform, []clwire.Fallback, error) {
	var res clwire.ProbeResult
	if err := json.Unmarshal(raw, &res); err != nil {
		return nil, nil, fmt.Errorf("the probe's answer (%d bytes) is not one of the protocol: %w", len(raw), err)
	}
	if len(res.Platforms) > maxPlatforms {
		return nil, nil, fmt.Errorf("the driver has %d platforms, more than %d", len(res.Platforms), maxPlatforms)
	}
	var found []*Platform
	for _, s := range res.Platforms {
		if len(s.Devices) > maxDevices {
			return nil, nil, fmt.Errorf("a platform has %d devices, more than %d", len(s.Devices), maxDevices)
		}
		s.ICD = d.ICD
		for i := range s.Devices {
			s.Devices[i].UUID = deviceUUID(node, s, i)
		}
		found = append(found, &Platform{Driver: d, Name: platformName(s), Snapshot: s})
	}
	return found, res.Fallbacks[:min(len(res.Fallbacks), maxFallbacks)], nil
}

// deviceUUID is a device's own UUID as 32 hexadecimal digits, else one that stays the same as long as the node, the
// driver's file and the device's place do.
func deviceUUID(node string, s clwire.PlatformSnapshot, i int) string {
	own := strings.ToLower(strings.ReplaceAll(s.Devices[i].UUID, "-", ""))
	if raw, err := hex.DecodeString(own); err == nil && len(raw) == 16 {
		return own
	}
	return derivedUUID(node, s, i)
}

// derivedUUID is that of a device whose driver gives it none.
func derivedUUID(node string, s clwire.PlatformSnapshot, i int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%d", node, s.ICD, s.Index, i))
	return hex.EncodeToString(sum[:16])
}

func platformName(s clwire.PlatformSnapshot) string {
	raw := s.Info[cl.PLATFORM_NAME]
	name := printable(raw[:min(len(raw), maxNameBytes)])
	if name == "" {
		return "unnamed platform of " + s.ICD
	}
	return name
}

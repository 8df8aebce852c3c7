package workers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// Probe finds the drivers again and probes them all, side by side. Sessions keep the platforms that they have. It
// returns when every probe has ended, in ProbeTimeout and a little at most.
func (p *Pool) Probe() {
	p.probing.Lock()
	defer p.probing.Unlock()
	if p.ctx.Err() != nil { // Close has begun, and perhaps ended
		return
	}
	defer p.tellLooked()
	defer p.once.Do(func() { close(p.probed) })
	p.lookedAround(lookAround(p.opts.Vendors)) // before: what changes meanwhile is seen the next time
	drivers, err := Discover(p.opts.Vendors)
	if err != nil {
		p.opts.Log.WithError(err).Warn("some driver files could not be read")
	}
	states := make([]DriverStatus, len(drivers))
	for i, d := range drivers {
		states[i] = DriverStatus{ICD: d.ICD, Library: d.Library, State: DriverProbing}
	}
	p.setDrivers(slices.Clone(states))
	found, lacking := make([][]*Platform, len(drivers)), make([][]clwire.Fallback, len(drivers))
	var wg sync.WaitGroup
	for i, d := range drivers {
		wg.Go(func() { found[i], lacking[i], states[i] = p.probeOne(d) })
	}
	wg.Wait()
	if p.opts.GPUsDone != nil {
		p.opts.GPUsDone()
	}
	p.setDrivers(states)
	p.setFallbacks(slices.Concat(lacking...))
	all := slices.Concat(found...)
	var snapshots []*clwire.PlatformSnapshot
	for _, pl := range all {
		snapshots = append(snapshots, &pl.Snapshot)
	}
	shareUUIDs(snapshots, func(s *clwire.PlatformSnapshot, i int) bool {
		return s.Devices[i].UUID == derivedUUID(p.opts.Node, *s, i)
	})
	offered, hidden, missing := p.opts.Devices.choose(all)
	if len(missing) > 0 {
		p.opts.Log.WithField("devices", missing).Warn("--devices names a device that no OpenCL driver shows: see tendril devices, and tendril status")
	}
	p.setPlatforms(offered, hidden)
}

func (p *Pool) setDrivers(states []DriverStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drivers = states
}

func (p *Pool) probeOne(d Driver) ([]*Platform, []clwire.Fallback, DriverStatus) {
	st := DriverStatus{ICD: d.ICD, Library: d.Library, State: DriverReady}
	log := p.opts.Log.WithField("driver", d.ICD)
	platforms, fallbacks, err := p.probe(d, p.newest())
	if err != nil {
		st.State, st.Error = DriverFailed, err.Error()
		if p.ctx.Err() != nil {
			return nil, nil, st
		}
		log.WithError(err).Warn("driver does not work and is left out")
		return nil, nil, st
	}
	for _, pl := range platforms {
		st.Platforms = append(st.Platforms, pl.Name)
		st.Devices += len(pl.Snapshot.Devices)
	}
	p.computeModes(platforms)
	if bounded := p.boundImports(d, p.newest(), platforms); bounded != nil {
		fallbacks = append(fallbacks, *bounded)
	}
	log.WithField("platforms", st.Platforms).WithField("devices", st.Devices).Info("driver probed")
	return platforms, fallbacks, st
}

// setFallbacks replaces what earlier probes and workers did without by what this probe did, and workers that serve.
func (p *Pool) setFallbacks(list []clwire.Fallback) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.faults)
	p.addFallbacks(list)
	for _, s := range p.serving {
		p.addFallbacks(s.w.fallbacks)
	}
}

func (p *Pool) noteFallbacks(list []clwire.Fallback) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addFallbacks(list)
}

// addFallbacks adds to what is done without. p.mu is held.
func (p *Pool) addFallbacks(list []clwire.Fallback) {
	for _, f := range list {
		if len(p.faults) < maxFallbacks {
			p.faults[printable([]byte(f.What))] = printable([]byte(f.Why))
		}
	}
}

func (p *Pool) newest() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.recent
}

// setPlatforms replaces the platforms and ends the warm workers of the old ones.
func (p *Pool) setPlatforms(list []*Platform, hidden []Hidden) {
	p.mu.Lock()
	old := p.warm
	p.hidden, p.wanted = hidden, time.Now()
	p.platforms, p.warm, p.pause = list, nil, map[*Platform]*backoff{}
	p.mu.Unlock()
	for _, w := range old {
		w.kill()
	}
	p.nudge()
}

// Platforms gives the working platforms in a stable order. It waits for the first probe.
func (p *Pool) Platforms(ctx context.Context) ([]*Platform, error) {
	select {
	case <-p.probed:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: the drivers are still being probed", object.ErrBusy)
	case <-p.ctx.Done():
		return nil, errClosed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.platforms, nil
}

// Offered gives the working platforms that are known now: none before the first probe has ended.
func (p *Pool) Offered() []*Platform {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.platforms
}

// Drivers gives the state of each driver, in order.
func (p *Pool) Drivers() []DriverStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drivers
}

// Fallbacks gives what workers and probes had to do without on this machine, sorted.
func (p *Pool) Fallbacks() []clwire.Fallback {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []clwire.Fallback
	list = append(append(list, p.spawner.fallbacks()...), p.lacking()...)
	for what, why := range p.faults {
		list = append(list, clwire.Fallback{What: what, Why: why})
	}
	slices.SortFunc(list, func(a, b clwire.Fallback) int { return strings.Compare(a.What, b.What) })
	return list
}

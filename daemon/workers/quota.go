package workers

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"tendril/daemon/tenancy"
)

// A tenant's code writes into its cache as it likes, on the disk that the node's own state lies on. So what it takes is
// looked at while workers serve, and one that takes more than CacheBytes loses its workers and its cache.

const (
	cacheLook = 5 * time.Second // between two looks
	// times what the last one took is the least pause, so that looking takes a fiftieth of a core
	cacheShare = 50
	cacheLate  = 12      // times cacheLook is the longest
	entryBytes = 4096    // that an entry is charged at least, for file systems run out of inodes too
	newPrefix  = ".new-" // what a cache is called while it is made
	oldPrefix  = ".old-" // what a cache is called while it is removed
)

// watchCaches lives as long as the pool. looked begins as what leftCaches found.
func (p *Pool) watchCaches(looked map[string]bool) {
	defer p.joined.Done()
	for name := range looked {
		if strings.HasPrefix(name, oldPrefix) {
			p.removeCache(filepath.Join(p.opts.CacheRoot, name))
			delete(looked, name)
		}
	}
	pause := p.opts.CacheLook
	if pause == 0 {
		pause = cacheLook
	}
	for {
		began := time.Now()
		serving := p.servingTenants()
		for name := range looked { // who served at the last look may have written since
			serving[name] = true
		}
		looked = p.servingTenants()
		for name := range serving {
			p.checkUse(name)
		}
		select {
		case <-time.After(min(max(pause, cacheShare*time.Since(began)), cacheLate*pause)):
		case <-p.ctx.Done():
			return
		}
	}
}

// leftCaches names the caches of earlier runs, also those that were being removed, and removes those that were being
// made. Nothing else makes any yet.
func (p *Pool) leftCaches() map[string]bool {
	left := map[string]bool{}
	entries, err := os.ReadDir(p.opts.CacheRoot)
	if err != nil {
		return left // there is none yet
	}
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), newPrefix):
			p.removeCache(filepath.Join(p.opts.CacheRoot, e.Name()))
		case e.IsDir():
			left[e.Name()] = true
		}
	}
	return left
}

// servingTenants gives the cache names of the tenants that have sessions.
func (p *Pool) servingTenants() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := map[string]bool{}
	for _, s := range p.serving {
		names[tenancy.CacheName(s.w.key.tenant)] = true
	}
	return names
}

// checkUse ends a cache that has grown too large, and whoever writes to it.
func (p *Pool) checkUse(name string) {
	dir := filepath.Join(p.opts.CacheRoot, name)
	if !usesMore(p.ctx, dir, p.opts.CacheBytes) {
		return
	}
	why := fmt.Sprintf("ended by the daemon: the tenant's kernel cache and temporary files take more than %s on disk (--kernel-cache)", humanize.IBytes(p.opts.CacheBytes))
	p.opts.Log.WithField("cache", dir).Warn("a tenant's kernel cache has grown too large and is removed: " + why)
	p.mu.Lock()
	var writers []*worker
	for _, s := range p.serving {
		writers = append(writers, s.w)
	}
	writers = append(writers, p.warm...)
	p.mu.Unlock()
	for _, w := range writers {
		if tenancy.CacheName(w.key.tenant) == name {
			w.killFor(why)
		}
	}
	old := filepath.Join(p.opts.CacheRoot, oldPrefix+name)
	p.removeCache(old)                          // where an earlier removal did not end
	if err := os.Rename(dir, old); err == nil { // from here on a new worker gets a new one
		p.removeCache(old)
	}
}

// removeCache removes what is in nobody's use any more. It follows no link (os.RemoveAll works by descriptors).
func (p *Pool) removeCache(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		p.opts.Log.WithError(err).WithField("cache", dir).Warn("a kernel cache cannot be removed yet")
	}
}

// usesMore reports whether dir takes more than limit on disk. It looks no further then, or when ctx ends: the pool's
// end waits for it, and a cache of many files on a slow disk takes seconds. What its owner changes meanwhile can make
// the answer wrong, and nothing worse.
func usesMore(ctx context.Context, dir string, limit uint64) bool {
	var used uint64
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return fs.SkipAll
		}
		if err != nil {
			return nil // it is gone
		}
		n := uint64(entryBytes)
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				n = max(n, uint64(st.Blocks)*512)
			}
		}
		if used += n; used > limit {
			return fs.SkipAll
		}
		return nil
	})
	return used > limit
}

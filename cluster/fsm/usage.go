package fsm

import (
	"fmt"
	"unique"

	"tendril/store/object"
)

// Usage is what one tenant has published: objects, those that were deleted among them as long as some node may have a
// replica, and the bytes that they take in each node's copy of the metadata, roughly.
type Usage struct {
	Objects int
	Bytes   uint64
	Data    uint64 // the objects' own bytes, each counted once; not bounded by MaxUsage
}

// MaxUsage is one tenant's share of the metadata.
var MaxUsage = Usage{Objects: MaxObjects / 2, Bytes: 256 << 20}

// objectBytes is what an object's record takes besides its name and its Meta: more with many replicas.
const objectBytes = 512

func (o *Object) usage() Usage {
	return Usage{1, objectBytes + uint64(len(o.Name)+len(o.Meta)), o.SizeBytes}
}

// UsageOf gives what a tenant has published.
func (s *State) UsageOf(tenant string) Usage { return s.usage[tenant] }

// enter puts an object in that is not there.
func (s *State) enter(o *Object) {
	o.Tenant = unique.Make(o.Tenant).Value() // one text, however many objects
	s.objects.put(o)
	s.use(o)
}

// use counts an object as its tenant's.
func (s *State) use(o *Object) {
	x, y := s.usage[o.Tenant], o.usage()
	s.usage[o.Tenant] = Usage{x.Objects + y.Objects, x.Bytes + y.Bytes, x.Data + y.Data}
}

// leave takes an object out.
func (s *State) leave(o *Object) {
	s.objects.remove(o.ID)
	delete(s.wanted, o.ID)
	s.losses++
	x, y := s.usage[o.Tenant], o.usage()
	if x.Objects == y.Objects {
		delete(s.usage, o.Tenant)
		return
	}
	s.usage[o.Tenant] = Usage{x.Objects - y.Objects, x.Bytes - y.Bytes, x.Data - y.Data}
}

// MayPublish says why a tenant may not publish an object more; most is its share. The last eighth of all objects is for
// tenants that have few, less than a sixty-fourth. It is asked before Publish is proposed, which holds to MaxObjects
// alone: those that are proposed at the same time may go beyond it a little.
func (s *State) MayPublish(tenant, name string, id UUID, size uint64, most Usage) error {
	if s.objects.get(id) != nil {
		return nil // it is there
	}
	if _, replaces := s.names.get(tenant, name); replaces {
		return nil
	}
	own, all := s.usage[tenant], s.objects.size()
	whole := ClusterQuota{}
	if t := s.tenants[tenant]; t != nil {
		whole = t.Whole
	}
	switch {
	case whole.Objects > 0 && own.Objects >= int(whole.Objects):
		return fmt.Errorf("%w: tenant %s has %d published objects, which is its quota in the cluster: unpublish some",
			object.ErrQuota, tenant, own.Objects)
	case whole.Bytes > 0 && (size > whole.Bytes || own.Data > whole.Bytes-size):
		return fmt.Errorf("%w: tenant %s has published %d of %d bytes in the cluster, and this object has %d: unpublish some",
			object.ErrQuota, tenant, own.Data, whole.Bytes, size)
	case own.Objects >= most.Objects:
		return fmt.Errorf("%w: tenant %s has %d published objects, which is the limit: unpublish some",
			object.ErrQuota, tenant, own.Objects)
	case own.Bytes >= most.Bytes:
		return fmt.Errorf("%w: names and metadata of the %d objects that tenant %s has published take %d bytes of each node's memory, at most %d: unpublish some",
			object.ErrQuota, own.Objects, tenant, own.Bytes, most.Bytes)
	case all >= MaxObjects-MaxObjects/8 && own.Objects >= MaxObjects/64:
		return fmt.Errorf("%w: the cluster has %d published objects, and the last ones are reserved for tenants that have few; %s has %d: unpublish some",
			object.ErrFull, all, tenant, own.Objects)
	}
	return nil
}

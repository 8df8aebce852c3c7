package inspect

import "time"

// What only those see who administer the daemon: the records of `tendril tenant ls`, `token ls` and `certificate ls`.

// Tenant is one tenant in `tendril tenant ls`.
type Tenant struct {
	Name     string    `json:"name"`
	Managed  bool      `json:"managed"` // else of some node's configuration
	State    string    `json:"state"`   // enabled, disabled
	Disabled time.Time `json:"disabled,omitzero"`
	Members  []Member  `json:"members"`
	Quotas   []Quota   `json:"quotas"`
	Cluster  Quota     `json:"cluster"` // of all nodes together

	PublishedObjects int    `json:"published_objects"`
	PublishedBytes   uint64 `json:"published_bytes"` // each object once
	LeasedDevices    int    `json:"leased_devices"`  // over nodes
}

// Member is somebody who is a tenant.
type Member struct {
	Kind string `json:"kind"` // user, group, certificate
	Name string `json:"name"` // or a number
	Node string `json:"node,omitempty"`
}

// Quota is what bounds a tenant; what is not there does not.
type Quota struct {
	Node        string `json:"node,omitempty"` // none: each node that is not named
	MemoryBytes uint64 `json:"memory_bytes,omitempty"`
	DiskBytes   uint64 `json:"disk_bytes,omitempty"`
	GPUBytes    uint64 `json:"gpu_bytes,omitempty"` // of each GPU
	Devices     uint32 `json:"devices,omitempty"`   // leased
	Objects     uint32 `json:"objects,omitempty"`   // published; of the cluster
	Bytes       uint64 `json:"published_bytes,omitempty"`
}

// Token is one token in `tendril token ls`. The secret is nowhere.
type Token struct {
	ID           string    `json:"id"`
	Role         string    `json:"role"`
	Tenant       string    `json:"tenant"`
	Created      time.Time `json:"created"`
	Expires      time.Time `json:"expires,omitzero"`
	Once         bool      `json:"once"`
	Uses         uint32    `json:"uses"`
	Revoked      time.Time `json:"revoked,omitzero"`
	State        string    `json:"state"`        // good, used, expired, revoked, void
	Certificates int       `json:"certificates"` // good ones that it paid for
	Clients      []string  `json:"clients"`      // whose they are: the names in them, each once
}

// Certificate is one certificate in `tendril certificate ls`.
type Certificate struct {
	Serial  string    `json:"serial"`
	Name    string    `json:"name"` // the client's or node's
	Role    string    `json:"role"`
	Tenant  string    `json:"tenant"`          // "node:" and its identifier for a node's own
	Token   string    `json:"token,omitempty"` // that paid for it
	Node    string    `json:"node,omitempty"`  // whose local programs have it, by name
	Expires time.Time `json:"expires"`
	Revoked time.Time `json:"revoked,omitzero"`
	Reason  string    `json:"reason,omitempty"` // of the revocation
	State   string    `json:"state"`            // good, expired, revoked
}

// Package cluster says who this node is.
//
// A node keeps one identity for its whole life in its state directory (identifier and name) and takes a fresh
// incarnation at every start of its daemon, so that whoever remembers something of an earlier run can tell that it is
// gone.
//
// Trust: the state directory belongs to the daemon's user and is closed to everyone else; what stands in it is still
// checked, because a disk that filled up or a machine that lost power leaves files that nobody wrote.
//
// Locks: none. An Identity is immutable once loaded. Two processes must not load the same directory at the same time;
// the daemon's lock on its state directory sees to that.
package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"

	"tendril/cluster/durable"
)

// IdentityFile is the name of the file that holds the identity, inside the state directory.
const IdentityFile = "identity.json"

// MaxNameBytes bounds a node's name (a DNS name has at most 253 bytes).
const MaxNameBytes = 253

// identityFormat is the version of the file's layout; a higher one is refused, never guessed at.
const identityFormat = 1

// maxIdentityBytes bounds what is read of the file; a valid one has about 200 bytes.
const maxIdentityBytes = 4096

// ErrIdentity is returned, wrapped with the path and the fault, when the identity file is there but cannot be believed.
var ErrIdentity = errors.New("the node's identity file is damaged")

// NodeID names a node for its whole life: 128 random bits.
type NodeID [16]byte

// Incarnation names one run of a node's daemon: 128 random bits, new at each start.
type Incarnation [16]byte

// String gives the identifier as 32 hexadecimal digits.
func (n NodeID) String() string { return hex.EncodeToString(n[:]) }

// String gives the incarnation as 32 hexadecimal digits.
func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

// Identity is who a node is during one run of its daemon. It is immutable.
type Identity struct {
	Node        NodeID
	Name        string // the name given by the administrator, else the host's name at first start
	Incarnation Incarnation
}

// identityRecord is the file's content. Sum is the CRC-32 (IEEE) of "node\x00name", so that a file torn by a crash, or
// edited by hand half-way, is told from a whole one.
type identityRecord struct {
	Format int    `json:"format"`
	Node   string `json:"node"`
	Name   string `json:"name"`
	Sum    uint32 `json:"crc32"`
}

func (r identityRecord) sum() uint32 { return crc32.ChecksumIEEE([]byte(r.Node + "\x00" + r.Name)) }

// LoadIdentity returns the identity kept in dir, which must exist, and makes one at the first start. A name that is not
// empty replaces the one on file (the identifier stays); otherwise a first start takes the host's name.
//
// Errors: ErrIdentity (wrapped) when the file is torn, corrupted or of a newer layout; it is then left as it is, for
// the administrator to look at. What the file system says, otherwise.
func LoadIdentity(dir, name string) (Identity, error) {
	if err := CheckName(name); err != nil {
		return Identity{}, err
	}
	path := filepath.Join(dir, IdentityFile)
	id, err := readIdentity(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		id, err = firstIdentity(name)
		if err != nil {
			return Identity{}, err
		}
		return renewed(id, writeIdentity(dir, id))
	case err != nil:
		return Identity{}, err
	case name != "" && name != id.Name:
		id.Name = name
		return renewed(id, writeIdentity(dir, id))
	}
	return renewed(id, nil)
}

// CheckName reports whether name can be a node's name; the empty name is fine and means "the host's".
func CheckName(name string) error {
	if len(name) > MaxNameBytes {
		return fmt.Errorf("node name of %d bytes is longer than %d", len(name), MaxNameBytes)
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("node name %q is not UTF-8", name)
	}
	for _, r := range name {
		if r < 0x20 || r == 0x7f {
			return fmt.Errorf("node name %q holds a control character", name)
		}
	}
	return nil
}

// renewed gives id a fresh incarnation unless err says that there is no identity.
func renewed(id Identity, err error) (Identity, error) {
	if err != nil {
		return Identity{}, err
	}
	if _, err := rand.Read(id.Incarnation[:]); err != nil {
		return Identity{}, fmt.Errorf("incarnation: %w", err)
	}
	return id, nil
}

func firstIdentity(name string) (Identity, error) {
	if name == "" {
		host, err := os.Hostname()
		if err != nil || CheckName(host) != nil || host == "" {
			host = "node"
		}
		name = host
	}
	id := Identity{Name: name}
	if _, err := rand.Read(id.Node[:]); err != nil {
		return Identity{}, fmt.Errorf("node identifier: %w", err)
	}
	return id, nil
}

func readIdentity(path string) (Identity, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return Identity{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxIdentityBytes {
		return Identity{}, damaged(path,
			fmt.Sprintf("it is %v with %d bytes, not a small regular file", info.Mode(), info.Size()))
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return Identity{}, err
	}
	return parseIdentity(path, raw)
}

func parseIdentity(path string, raw []byte) (Identity, error) {
	var rec identityRecord
	if err := json.Unmarshal(raw, &rec); err != nil {
		return Identity{}, damaged(path, err.Error())
	}
	if rec.Format != identityFormat {
		return Identity{}, damaged(path,
			fmt.Sprintf("its layout is version %d, this daemon reads %d", rec.Format, identityFormat))
	}
	if rec.Sum != rec.sum() {
		return Identity{}, damaged(path, fmt.Sprintf("its checksum is %d, its content's is %d", rec.Sum, rec.sum()))
	}
	id := Identity{Name: rec.Name}
	n, err := hex.DecodeString(rec.Node)
	if err != nil || len(n) != len(id.Node) {
		return Identity{}, damaged(path, fmt.Sprintf("node %q is not 32 hexadecimal digits", rec.Node))
	}
	copy(id.Node[:], n)
	if err := CheckName(rec.Name); err != nil || rec.Name == "" {
		return Identity{}, damaged(path, fmt.Sprintf("node name %q: empty or not allowed", rec.Name))
	}
	return id, nil
}

func damaged(path, fault string) error {
	return fmt.Errorf("%w: %s: %s; restore it from a copy, or remove it and start once with --bootstrap-anyway as a new node", ErrIdentity, path, fault)
}

// writeIdentity replaces the file as a whole.
func writeIdentity(dir string, id Identity) error {
	rec := identityRecord{Format: identityFormat, Node: id.Node.String(), Name: id.Name}
	rec.Sum = rec.sum()
	raw, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(dir, IdentityFile), append(raw, '\n'))
}

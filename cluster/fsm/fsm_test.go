package fsm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tendril/store/object"
)

var update = flag.Bool("update", false, "write testdata anew")

func uuid(n int) (u UUID) {
	u[0], u[15] = byte(n), 1
	return u
}

// samples has one command of each type with every field set.
func samples() []Command {
	rep := Replica{uuid(1), uuid(2)}
	cert := Certificate{Serial: uuid(9), Subject: "laptop", Role: RoleUser, Tenant: "t", Token: uuid(8),
		Expires: 1 << 40, Revoked: 3, Reason: "lost"}
	return []Command{
		&Nop{},
		&PutNode{Node{ID: uuid(1), Name: "a", Incarnation: uuid(2), Client: []string{"h:1"},
			Peer: []string{"h:2", "[::1]:3"}, Version: "0.1", Epoch: 4, Joined: 5}},
		&RemoveNode{uuid(1), 2},
		&PutDevices{uuid(1), uuid(2),
			[]Device{{Key: DeviceKey{uuid(3), "PoCL 3.1"}, Node: uuid(1), Name: "cpu", Vendor: "v",
				Version: "OpenCL 3.0", Type: 2, MemoryBytes: 1 << 33, Units: 2, ClockMHz: 2000,
				Profile: []byte("{}")}}},
		&PutTenant{Tenant{Name: "t", Users: []uint32{0, 1000}, Groups: []uint32{7}, Certificates: []string{"c"},
			QuotaBytes: 1 << 30, Epoch: 1}},
		&RemoveTenant{"t", 3},
		&CreateToken{Token{ID: uuid(4), SecretHash: [32]byte{1, 2}, Role: RoleReadOnly, Tenant: "t", Created: 1,
			Expires: 1 << 50, Once: true, Uses: 2, Revoked: 3}},
		&SpendToken{uuid(4), [32]byte{1, 2}, cert},
		&RevokeToken{uuid(4), true},
		&RecordCertificate{cert},
		&RevokeCertificate{uuid(9), "stolen"},
		&Publish{Object{ID: uuid(5), Tenant: "t", Name: "n", Kind: 1, Class: 2, SizeBytes: 77, Meta: []byte("m"),
			Created: 6, Epoch: 7, Replicas: []Replica{rep}}, true},
		&Unpublish{uuid(5), "t", "n", 8},
		&AddReplica{uuid(5), 1, rep},
		&RemoveReplica{uuid(5), 2, rep},
		&Withdraw{uuid(1), uuid(2), []UUID{uuid(5)}},
		&SetPolicy{Policy{"k", []byte("v"), 9}},
		&Sweep{},
		&RenewCertificate{uuid(9), cert},
		&SetReplicas{uuid(5), "t", 3},
		&Delete{uuid(5), "t", rep},
		&PutLease{Lease{ID: uuid(6), Tenant: "t", Holder: "python3", Node: uuid(1), Incarnation: uuid(2), Count: 2,
			Whole: true, Granted: true, Order: 3, Since: 4, Devices: []LeaseDevice{{uuid(1), "aa"}, {uuid(3), "bb"}}}},
		&EndLease{uuid(6)},
		&EndLeases{uuid(1), uuid(2)},
		&RecordAccess{cert, uuid(1)},
		&RevokeCertificates{uuid(9), "t", uuid(1), "stolen"},
		&SetTenant{Tenant{Name: "t", Users: []uint32{1000}, Groups: []uint32{7}, Certificates: []string{"c"},
			QuotaBytes: 5, Epoch: 1, Managed: true, Disabled: 6, Members: []TenantMember{{MemberUser, uuid(1), "ann"}},
			Quotas: []TenantQuota{{uuid(1), 1 << 30, 1 << 31, 1 << 32, 4}}, Whole: ClusterQuota{5, 1 << 33, 6}}},
		&EndListedLeases{[]UUID{uuid(6), uuid(7)}},
	}
}

func mustEncode(t testing.TB, request UUID, cmd Command, at int64) []byte {
	t.Helper()
	raw, err := Encode(request, cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := Stamp(raw, at); err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestTableIsComplete(t *testing.T) {
	if len(samples()) != len(commandTypes) {
		t.Fatalf("%d samples, %d commands", len(samples()), len(commandTypes))
	}
	for i, row := range commandTypes {
		if int(row.number) != i+1 || row.make().number() != row.number ||
			reflect.TypeOf(row.make()) != reflect.TypeOf(samples()[i]) {
			t.Errorf("row %d: number %d, command %T says %d", i, row.number, row.make(), row.make().number())
		}
	}
}

func TestGoldenBytes(t *testing.T) {
	var b strings.Builder
	for i, cmd := range samples() {
		fmt.Fprintf(&b, "%d %s %s\n", i+1, commandTypes[i].name,
			hex.EncodeToString(mustEncode(t, uuid(100), cmd, 1234567890)))
	}
	path := filepath.Join("testdata", "commands.golden")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the bytes of commands changed; logs on disk would no longer be read:\n%s", b.String())
	}
}

func TestRoundTripAndTruncation(t *testing.T) {
	for _, cmd := range samples() {
		raw := mustEncode(t, uuid(100), cmd, 42)
		e, err := Decode(raw)
		if err != nil || e.Request != uuid(100) || e.Time != 42 || !reflect.DeepEqual(e.Command, cmd) {
			t.Fatalf("%T: %+v, %v", cmd, e, err)
		}
		for n := range raw {
			if _, err := Decode(raw[:n]); !errors.Is(err, object.ErrProtocol) {
				t.Fatalf("%T cut to %d of %d bytes: %v", cmd, n, len(raw), err)
			}
		}
		if _, err := Decode(append(slices.Clone(raw), 0)); !errors.Is(err, object.ErrProtocol) {
			t.Fatalf("%T with a byte too many: %v", cmd, err)
		}
	}
}

func TestDecodeRefusesNewerVersions(t *testing.T) {
	raw := mustEncode(t, uuid(1), &Nop{}, 1)
	raw[0] = 2
	if _, err := Decode(raw); !errors.Is(err, object.ErrVersion) {
		t.Error(err)
	}
	raw[0], raw[2] = 1, 200
	if _, err := Decode(raw); !errors.Is(err, object.ErrVersion) {
		t.Error(err)
	}
	s := New()
	if _, err := s.Apply(raw); !errors.Is(err, object.ErrVersion) {
		t.Error(err)
	}
}

func TestEncodeRefusesWhatIsTooLong(t *testing.T) {
	for _, cmd := range []Command{
		&SetPolicy{Policy{Key: strings.Repeat("k", MaxTextBytes+1)}},
		&SetPolicy{Policy{Key: "k", Value: make([]byte, MaxPolicyBytes+1)}},
		&SetPolicy{Policy{Key: "\xff"}},
		&PutNode{Node{Peer: make([]string, MaxAddresses+1)}},
		&Withdraw{Keep: make([]UUID, MaxCommandBytes/16)},
		&CreateToken{Token{Role: 9}},
	} {
		if raw, err := Encode(UUID{}, cmd); err == nil {
			t.Errorf("%T: encoded into %d bytes", cmd, len(raw))
		}
	}
}

// do applies one command under a fresh request id.
type driver struct {
	t testing.TB
	s *State
	n uint32
}

func (d *driver) do(cmd Command, at int64) Result {
	d.t.Helper()
	d.n++
	id := UUID{0xFF, byte(d.n), byte(d.n >> 8), byte(d.n >> 16)}
	r, err := d.s.Apply(mustEncode(d.t, id, cmd, at))
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

func (d *driver) want(code *object.Sentinel, cmd Command, at int64) Result {
	d.t.Helper()
	r := d.do(cmd, at)
	if code == nil && r.Code != 0 || code != nil && r.Code != code.Code() {
		d.t.Fatalf("%T: %d %q, want %v", cmd, r.Code, r.Text, code)
	}
	return r
}

func node(n, incarnation int, epoch uint64) *PutNode {
	return &PutNode{Node{ID: uuid(n), Name: fmt.Sprint("n", n), Incarnation: uuid(incarnation), Epoch: epoch}}
}

func publish(id int, name string, n, incarnation int) *Publish {
	return &Publish{Object: Object{ID: uuid(id), Tenant: "t", Name: name, Class: 2, SizeBytes: 1,
		Replicas: []Replica{{uuid(n), uuid(incarnation)}}}}
}

func TestRestartWithdraws(t *testing.T) {
	d := &driver{t: t, s: New()}
	d.want(nil, node(1, 10, 0), 1)
	d.want(nil, node(2, 20, 0), 1)
	d.want(nil, &PutDevices{uuid(1), uuid(10), []Device{{Key: DeviceKey{uuid(3), "d"}}}}, 1)
	d.want(nil, publish(50, "only here", 1, 10), 1)
	d.want(nil, publish(51, "both", 1, 10), 1)
	d.want(nil, publish(52, "kept", 1, 10), 1)
	e := d.want(nil, &AddReplica{uuid(51), 1, Replica{uuid(2), uuid(20)}}, 1).Epoch
	d.want(nil, node(1, 11, 1), 2)
	if len(d.s.Devices()) != 0 {
		t.Error("a new incarnation has the old one's devices")
	}
	d.want(object.ErrPermission, publish(53, "late", 1, 10), 2)
	d.want(object.ErrPermission, &PutDevices{uuid(1), uuid(10), nil}, 2)
	d.want(object.ErrPermission, &Withdraw{uuid(1), uuid(10), nil}, 2)
	d.want(nil, &Withdraw{uuid(1), uuid(11), []UUID{uuid(52)}}, 2)
	if _, ok := d.s.ObjectByName("t", "only here"); ok {
		t.Error("an object without replicas is still published")
	}
	both, _ := d.s.ObjectByName("t", "both")
	if !reflect.DeepEqual(both.Replicas, []Replica{{uuid(2), uuid(20)}}) || both.Epoch <= e {
		t.Errorf("both: %+v", both)
	}
	if kept, ok := d.s.ObjectByName("t", "kept"); !ok || kept.Replicas[0].Incarnation != uuid(11) {
		t.Errorf("kept: %+v %v", kept, ok)
	}
	d.want(object.ErrBusy, &RemoveReplica{uuid(51), e, Replica{uuid(2), uuid(20)}}, 2)
	d.want(object.ErrBusy, node(1, 12, 1), 2)
}

func TestNamesAndReplacement(t *testing.T) {
	d := &driver{t: t, s: New()}
	d.want(nil, node(1, 10, 0), 1)
	d.want(nil, publish(50, "x", 1, 10), 1)
	d.want(object.ErrExists, publish(51, "x", 1, 10), 1)
	p := publish(51, "x", 1, 10)
	p.Replace = true
	d.want(nil, p, 1)
	if o, _ := d.s.ObjectByName("t", "x"); o.ID != uuid(51) || len(d.s.Objects()) != 1 {
		t.Errorf("%+v of %d", o, len(d.s.Objects()))
	}
	d.want(object.ErrPermission, &Unpublish{ID: uuid(51), Tenant: "other"}, 1)
	d.want(object.ErrBusy, &Unpublish{ID: uuid(51), Tenant: "t", Epoch: 9}, 1)
	d.want(nil, &Unpublish{Tenant: "t", Name: "x"}, 1)
	d.want(object.ErrNotFound, &Unpublish{Tenant: "t", Name: "x"}, 1)
}

func TestTokens(t *testing.T) {
	d := &driver{t: t, s: New()}
	hash, serial := [32]byte{7}, 0
	spend := func(id int, h [32]byte) *SpendToken {
		serial++
		return &SpendToken{uuid(id), h,
			Certificate{Serial: uuid(serial), Subject: "s", Role: RoleNode, Expires: 1 << 60}}
	}
	d.want(nil, &CreateToken{Token{ID: uuid(1), SecretHash: hash, Role: RoleUser, Once: true, Tenant: "t"}}, 100)
	d.want(nil, &CreateToken{Token{ID: uuid(2), SecretHash: hash, Role: RoleUser, Expires: 200}}, 100)
	d.want(object.ErrInvalid, &CreateToken{Token{ID: uuid(3), SecretHash: hash, Role: RoleUser, Expires: 50}}, 100)
	wrong := d.want(object.ErrPermission, spend(1, [32]byte{8}), 100).Text
	if unknown := d.want(object.ErrPermission, spend(77, hash), 100).Text; unknown != wrong {
		t.Errorf("an unknown id is told from a wrong secret: %q, %q", unknown, wrong)
	}
	if r := d.want(object.ErrPermission, spend(77, [32]byte{}), 100); r.Text != wrong {
		t.Errorf("no token with no secret: %q", r.Text)
	}
	first := spend(1, hash)
	raw := mustEncode(t, uuid(200), first, 110)
	for range 2 { // the same request again is no replay
		if r, err := d.s.Apply(raw); err != nil || r.Code != 0 {
			t.Fatal(r, err)
		}
	}
	c, ok := d.s.Certificate(first.Certificate.Serial)
	if !ok || c.Role != RoleUser || c.Tenant != "t" || c.Token != uuid(1) {
		t.Errorf("the certificate has not its token's role and tenant: %+v", c)
	}
	if r := d.want(object.ErrPermission, spend(1, hash), 120); !strings.Contains(r.Text, "one use") {
		t.Error(r.Text)
	}
	d.want(nil, spend(2, hash), 199)
	if r := d.want(object.ErrPermission, spend(2, hash), 200); !strings.Contains(r.Text, "expired") {
		t.Error(r.Text)
	}
	d.want(nil, &RevokeToken{uuid(1), true}, 210)
	if !d.s.Revoked(first.Certificate.Serial) {
		t.Error("the certificate outlived its token's revocation")
	}
	if r := d.want(object.ErrPermission, spend(1, hash), 220); !strings.Contains(r.Text, "revoked") {
		t.Error(r.Text)
	}
	d.want(nil, &Sweep{}, 220+keepAfterExpiry)
	if list := d.s.Tokens(); len(list) != 1 || list[0].ID != uuid(2) || len(d.s.Certificates()) != 2 {
		t.Errorf("after the sweep: %+v, tokens %+v", d.s.Counts(), list)
	}
	// The token's own end is long past, but the laptop that it let in is stolen now.
	d.want(nil, &RevokeToken{uuid(2), true}, 300+keepAfterExpiry)
	d.want(nil, &Sweep{}, 300+2*keepAfterExpiry)
	if len(d.s.Tokens()) != 0 {
		t.Errorf("after the second sweep: %+v", d.s.Tokens())
	}
}

func TestRenewedCertificatesEndWithTheirToken(t *testing.T) {
	d := &driver{t: t, s: New()}
	hash := [32]byte{7}
	d.want(nil, &CreateToken{Token{ID: uuid(1), SecretHash: hash, Role: RoleUser, Tenant: "t"}}, 100)
	d.want(nil, &SpendToken{uuid(1), hash,
		Certificate{Serial: uuid(1), Subject: "laptop", Role: RoleUser, Expires: 1000}}, 100)
	forged := Certificate{Serial: uuid(2), Subject: "root", Role: RoleNode, Tenant: "other", Expires: 2000}
	d.want(nil, &RenewCertificate{uuid(1), forged}, 500)
	if c, ok := d.s.Certificate(uuid(2)); !ok || c.Subject != "laptop" || c.Role != RoleUser || c.Tenant != "t" ||
		c.Token != uuid(1) || c.Expires != 2000 {
		t.Errorf("a renewed certificate: %+v", c)
	}
	d.want(object.ErrExists, &RenewCertificate{uuid(1), forged}, 500)
	d.want(object.ErrPermission,
		&RenewCertificate{uuid(77), Certificate{Serial: uuid(3), Role: RoleUser, Expires: 2000}}, 500)
	d.want(object.ErrPermission,
		&RenewCertificate{uuid(1), Certificate{Serial: uuid(3), Role: RoleUser, Expires: 2000}}, 1000)
	d.want(nil, &RevokeToken{uuid(1), true}, 1100)
	// Under way while the revocation came first.
	d.want(object.ErrPermission,
		&RenewCertificate{uuid(2), Certificate{Serial: uuid(4), Role: RoleUser, Expires: 3000}}, 1200)
	for n := range byte(4) {
		if _, ok := d.s.Certificate(uuid(int(n))); ok && !d.s.Revoked(uuid(int(n))) {
			t.Errorf("certificate %d is good", n)
		}
	}
}

func TestOneTokenCannotFillTheTable(t *testing.T) {
	d := &driver{t: t, s: New()}
	hash := [32]byte{7}
	serial := func(n int) UUID { return UUID{1, byte(n), byte(n >> 8), 5} }
	for id := range 2 {
		d.want(nil, &CreateToken{Token{ID: uuid(id + 1), SecretHash: hash, Role: RoleUser}}, 100)
	}
	for n := range MaxTokenCertificates - 1 {
		d.want(nil, &SpendToken{uuid(1), hash,
			Certificate{Serial: serial(n), Subject: "s", Role: RoleUser, Expires: 1000}}, 100)
	}
	next := func(n int) Certificate {
		return Certificate{Serial: serial(n), Subject: "s", Role: RoleUser, Expires: 1000}
	}
	d.want(nil, &RenewCertificate{serial(0), next(5000)}, 100)
	d.want(object.ErrFull, &RenewCertificate{serial(0), next(5001)}, 100)
	d.want(object.ErrFull, &SpendToken{uuid(1), hash, next(5002)}, 100)
	d.want(nil, &SpendToken{uuid(2), hash, next(5003)}, 100)
}

// Certificates that no token paid for are those of nodes, and of programs that come in at other nodes.
func TestOneTenantCannotFillTheTable(t *testing.T) {
	d := &driver{t: t, s: New()}
	next := func(n int, role Role, tenant string) Certificate {
		return Certificate{Serial: UUID{2, byte(n), byte(n >> 8), 5}, Subject: "s", Role: role, Tenant: tenant,
			Expires: 1000}
	}
	for n := range MaxTokenCertificates {
		d.want(nil, &RecordCertificate{next(n, RoleUser, "a")}, 100)
	}
	d.want(object.ErrFull, &RecordCertificate{next(5000, RoleUser, "a")}, 100)
	d.want(object.ErrFull, &RenewCertificate{next(0, RoleUser, "a").Serial, next(5001, RoleUser, "a")}, 100)
	d.want(nil, &RecordCertificate{next(5002, RoleUser, "b")}, 100)
	for n := range MaxTokenCertificates + 1 {
		d.want(nil, &RecordCertificate{next(10000+n, RoleNode, "")}, 100)
	}
}

// Certificates of programs that come in at other nodes hang on no token: they are not renewed, and end by their serial
// number, their tenant, their node, and with that node.
func TestAccessIsRevoked(t *testing.T) {
	d := &driver{t: t, s: New()}
	d.want(nil, node(1, 11, 0), 100)
	d.want(nil, node(2, 12, 0), 100)
	serials := map[string]UUID{}
	for i, x := range []struct {
		tenant string
		node   int
	}{{"a", 1}, {"a", 2}, {"b", 1}, {"b", 2}} {
		c := Certificate{Serial: UUID{1, byte(i)}, Subject: "s", Role: RoleUser, Tenant: x.tenant, Token: uuid(4),
			Revoked: 7, Expires: 1000}
		serials[fmt.Sprint(x.tenant, x.node)] = c.Serial
		d.want(nil, &RecordAccess{c, uuid(x.node)}, 100)
	}
	own := Certificate{Serial: uuid(9), Subject: "n", Role: RoleNode, Tenant: NodeTenant(uuid(1)), Expires: 1000}
	d.want(nil, &RecordCertificate{own}, 100)
	good := func(want string) {
		t.Helper()
		var have []string
		for _, name := range slices.Sorted(maps.Keys(serials)) {
			if c, _ := d.s.Certificate(serials[name]); c.Revoked == 0 {
				have = append(have, name)
			}
		}
		if got := strings.Join(have, " "); got != want {
			t.Fatalf("good are %q, want %q", got, want)
		}
	}
	good("a1 a2 b1 b2")
	d.want(object.ErrPermission, &RenewCertificate{serials["a1"], Certificate{Serial: uuid(7), Role: RoleUser,
		Expires: 2000}}, 100)
	d.want(object.ErrInvalid, &RecordAccess{own, uuid(1)}, 100)
	d.want(object.ErrNotFound, &RecordAccess{Certificate{Serial: uuid(7), Role: RoleUser, Tenant: "a", Expires: 1000},
		uuid(3)}, 100)

	d.want(object.ErrInvalid, &RevokeCertificates{}, 100)
	d.want(object.ErrInvalid, &RevokeCertificates{Serial: own.Serial}, 100)
	d.want(object.ErrNotFound, &RevokeCertificates{Tenant: "c"}, 100)
	before := d.s.Revocations()
	if r := d.want(nil, &RevokeCertificates{Tenant: "a", Node: uuid(2), Reason: "r"}, 100); r.Epoch != 1 {
		t.Errorf("revoked %d", r.Epoch)
	}
	good("a1 b1 b2")
	if r := d.want(nil, &RevokeCertificates{Tenant: "a"}, 100); r.Epoch != 1 || d.s.Revocations() == before {
		t.Errorf("revoked %d of one that was good", r.Epoch)
	}
	good("b1 b2")
	d.want(nil, &RevokeCertificates{Serial: serials["b1"]}, 100)
	good("b2")
	d.want(nil, &RemoveNode{uuid(2), 1}, 100)
	good("")
	if d.s.Revoked(own.Serial) {
		t.Error("a node's own certificate was revoked")
	}
}

// A tenant of SetTenant keeps what a node's configuration does not know; nobody is two tenants; its quotas hold.
func TestManagedTenants(t *testing.T) {
	d := &driver{t: t, s: New()}
	ann := TenantMember{MemberUser, uuid(1), "ann"}
	lab := Tenant{Name: "lab", Managed: true, Disabled: 7, Members: []TenantMember{ann},
		Quotas: []TenantQuota{{MemoryBytes: 5}, {Node: uuid(2), MemoryBytes: 9}},
		Whole:  ClusterQuota{Objects: 2, Bytes: 100}}
	d.want(nil, &SetTenant{lab}, 1)
	if got := d.s.Freeze().body.version; got != 5 {
		t.Errorf("snapshot version %d", got)
	}
	d.want(object.ErrBusy, &SetTenant{lab}, 1)
	d.want(object.ErrExists, &SetTenant{Tenant{Name: "other", Members: []TenantMember{ann}}}, 1)
	d.want(object.ErrInvalid, &SetTenant{Tenant{Name: "other", Members: []TenantMember{ann, ann}}}, 1)
	d.want(object.ErrInvalid, &SetTenant{Tenant{}}, 1)
	before := d.s.TenantChanges()
	d.want(nil, &PutTenant{Tenant{Name: "lab", Users: []uint32{3}, Epoch: 1}}, 1)
	x, _ := d.s.Tenant("lab")
	if !x.Managed || !d.s.Disabled("lab") || len(x.Members) != 1 || len(x.Users) != 1 || d.s.TenantChanges() == before {
		t.Errorf("%+v", x)
	}
	if x.QuotaOf(uuid(1)).MemoryBytes != 5 || x.QuotaOf(uuid(2)).MemoryBytes != 9 || d.s.Disabled("nobody") {
		t.Errorf("quotas %+v", x.Quotas)
	}
	d.want(nil, node(1, 11, 0), 1)
	full := func(size uint64) bool {
		return errors.Is(d.s.MayPublish("lab", "n", uuid(99), size, MaxUsage), object.ErrQuota)
	}
	for i := range 2 {
		if full(60) != (i == 1) || full(40) {
			t.Errorf("%d objects: 60 bytes %v, 40 bytes %v", i, full(60), full(40))
		}
		o := Object{ID: uuid(50 + i), Tenant: "lab", Name: fmt.Sprint(i), Class: 2, SizeBytes: 50,
			Replicas: []Replica{{uuid(1), uuid(11)}}}
		d.want(nil, &Publish{Object: o}, 1)
	}
	if !full(0) {
		t.Error("more objects than its quota")
	}
	d.want(nil, &RemoveTenant{"lab", 2}, 1)
	d.want(nil, &SetTenant{Tenant{Name: "other", Members: []TenantMember{ann}}}, 1)
}

// What earlier releases wrote has certificates without their node.
func TestSnapshotOfVersion3(t *testing.T) {
	d := &driver{t: t, s: New()}
	d.want(nil, node(1, 11, 0), 100)
	d.want(nil, &RecordAccess{Certificate{Serial: uuid(3), Role: RoleUser, Tenant: "a", Expires: 1000}, uuid(1)}, 100)
	f := d.s.Freeze()
	if f.body.version != 4 || New().Freeze().body.version != 3 {
		t.Errorf("version %d; of an empty state %d", f.body.version, New().Freeze().body.version)
	}
	f.body.version = 3
	raw, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Restore(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := s.Certificate(uuid(3)); !ok || !c.Node.IsZero() || c.Tenant != "a" {
		t.Errorf("%+v", c)
	}
}

func TestRequestIDs(t *testing.T) {
	s := New()
	raw := mustEncode(t, uuid(1), node(1, 10, 0), 5)
	first, _ := s.Apply(raw)
	again, _ := s.Apply(mustEncode(t, uuid(1), node(1, 10, 0), 6)) // stamped anew by the next leader
	if first != again || first.Code != 0 {
		t.Errorf("%+v, %+v", first, again)
	}
	other, _ := s.Apply(mustEncode(t, uuid(1), node(1, 11, 1), 6))
	if other.Code != object.ErrInvalid.Code() {
		t.Errorf("another command under the same id: %+v", other)
	}
	for i := range MaxRequests {
		if _, err := s.Apply(mustEncode(t, UUID{1, byte(i), byte(i >> 8), 9}, &Nop{}, 7)); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Counts()["requests"]; n != MaxRequests {
		t.Errorf("%d requests remembered", n)
	}
	if forgotten, _ := s.Apply(raw); forgotten.Code != object.ErrBusy.Code() { // forgotten: the epoch refuses it now
		t.Errorf("%+v", forgotten)
	}
	if s.Now() != 7 {
		t.Errorf("time went back to %d", s.Now())
	}
}

// randomCommand draws from few ids, names and epochs, so that commands meet each other.
func randomCommand(r *rand.Rand) Command {
	id := func() UUID { return uuid(1 + r.IntN(4)) }
	name := func() string { return string(rune('a' + r.IntN(4))) }
	epoch := func() uint64 { return uint64(r.IntN(4)) }
	rep := func() Replica { return Replica{id(), id()} }
	cert := Certificate{Serial: UUID{byte(r.IntN(64)), 1}, Subject: name(), Role: RoleUser,
		Expires: int64(r.IntN(2000))}
	switch Type(1 + r.IntN(len(commandTypes))) {
	case TypeNop:
		return &Nop{}
	case TypePutNode:
		return &PutNode{Node{ID: id(), Name: name(), Incarnation: id(), Epoch: epoch()}}
	case TypeRemoveNode:
		return &RemoveNode{id(), epoch()}
	case TypePutDevices:
		return &PutDevices{id(), id(), []Device{{Key: DeviceKey{id(), name()}}, {Key: DeviceKey{id(), name()}}}}
	case TypePutTenant:
		return &PutTenant{Tenant{Name: name(), Users: []uint32{r.Uint32N(4)}, Epoch: epoch()}}
	case TypeRemoveTenant:
		return &RemoveTenant{name(), epoch()}
	case TypeCreateToken:
		return &CreateToken{Token{ID: id(), SecretHash: [32]byte{1}, Role: RoleUser, Expires: int64(r.IntN(2000)),
			Once: r.IntN(2) == 0}}
	case TypeSpendToken:
		return &SpendToken{id(), [32]byte{byte(r.IntN(2))}, cert}
	case TypeRevokeToken:
		return &RevokeToken{id(), r.IntN(2) == 0}
	case TypeRecordCertificate:
		return &RecordCertificate{cert}
	case TypeRevokeCertificate:
		return &RevokeCertificate{cert.Serial, "r"}
	case TypePublish:
		return &Publish{Object{ID: id(), Tenant: "t", Name: name(), SizeBytes: 1, Replicas: []Replica{rep()}},
			r.IntN(3) == 0}
	case TypeUnpublish:
		return &Unpublish{ID: id(), Tenant: "t", Epoch: epoch()}
	case TypeAddReplica:
		return &AddReplica{id(), epoch(), rep()}
	case TypeRemoveReplica:
		return &RemoveReplica{id(), epoch(), rep()}
	case TypeWithdraw:
		return &Withdraw{id(), id(), []UUID{id()}}
	case TypeSetPolicy:
		return &SetPolicy{Policy{name(), []byte(name()), epoch()}}
	case TypeSetReplicas:
		return &SetReplicas{id(), "t", uint16(r.IntN(4))}
	case TypeDelete:
		return &Delete{id(), "t", rep()}
	case TypePutLease:
		return &PutLease{Lease{ID: id(), Tenant: name(), Node: id(), Incarnation: id(), Granted: r.IntN(2) == 0,
			Devices: []LeaseDevice{{id(), name()}}}}
	case TypeEndLease:
		return &EndLease{id()}
	case TypeEndLeases:
		return &EndLeases{id(), id()}
	case TypeEndListedLeases:
		return &EndListedLeases{[]UUID{id(), id()}}
	case TypeRecordAccess:
		cert.Tenant = name()
		return &RecordAccess{cert, id()}
	case TypeRevokeCertificates:
		return &RevokeCertificates{Tenant: name(), Node: id()}
	case TypeSetTenant:
		return &SetTenant{Tenant{Name: name(), Epoch: epoch(), Managed: r.IntN(2) == 0, Disabled: int64(r.IntN(2)),
			Members: []TenantMember{{MemberUser, id(), name()}}}}
	}
	return &Sweep{}
}

func randomLog(t testing.TB, seed uint64, n int) [][]byte {
	r := rand.New(rand.NewPCG(seed, 1))
	var log [][]byte
	for range n {
		log = append(log, mustEncode(t, UUID{byte(r.IntN(256)), byte(r.IntN(2)), 1}, randomCommand(r),
			int64(r.IntN(1000))))
	}
	return log
}

// TestSnapshotAnywhere: applying a whole log gives the same state and results as restoring a snapshot taken in the
// middle and applying the rest. What was frozen in the middle stays as it was.
func TestSnapshotAnywhere(t *testing.T) {
	accepted := 0
	for seed := range uint64(150) {
		log := randomLog(t, seed, 200)
		whole, halves := New(), New()
		var frozen *Frozen
		var then []byte
		for i, raw := range log {
			if i == int(seed) {
				frozen = whole.Freeze()
				then, _ = whole.Snapshot()
			}
			if i%17 == int(seed%17) {
				snap, err := halves.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				if halves, err = Restore(bytes.NewReader(snap)); err != nil {
					t.Fatalf("seed %d, command %d: %v", seed, i, err)
				}
			}
			a, errA := whole.Apply(raw)
			b, errB := halves.Apply(raw)
			if a != b || errA != nil || errB != nil {
				t.Fatalf("seed %d, command %d: %+v %v, %+v %v", seed, i, a, errA, b, errB)
			}
			if a.Code == 0 {
				accepted++
			}
			checkInvariants(t, whole)
		}
		if now, err := frozen.Encode(); err != nil || !bytes.Equal(now, then) {
			t.Fatalf("seed %d: what was frozen has changed with the state (%v)", seed, err)
		}
		x, errX := whole.Snapshot()
		y, errY := halves.Snapshot()
		if errX != nil || errY != nil || !bytes.Equal(x, y) {
			t.Fatalf("seed %d: the states differ (%v, %v)", seed, errX, errY)
		}
	}
	if accepted < 150*200/10 {
		t.Errorf("only %d commands were accepted: the generator tests refusals alone", accepted)
	}
}

// checkNames compares what is derived from names with them.
func checkNames(t *testing.T, p *publishedNames) {
	t.Helper()
	count := 0
	for tenant, of := range p.tenants {
		names := slices.Sorted(maps.Keys(of.ids))
		if count += len(names); len(names) == 0 || !slices.Equal(names, slices.Concat(of.ordered.chunks...)) {
			t.Fatalf("tenant %s: %v is not in order, or empty: %v", tenant, names, of.ordered.chunks)
		}
	}
	if tenants := slices.Sorted(maps.Keys(p.tenants)); count != p.count ||
		!slices.Equal(tenants, slices.Concat(p.ordered.chunks...)) {
		t.Fatalf("%d of %d names; tenants %v are not in order: %v", count, p.count, tenants, p.ordered.chunks)
	}
}

func checkInvariants(t *testing.T, s *State) {
	t.Helper()
	if s.names.count+s.deleted != s.objects.size() || len(s.requests) != len(s.order) {
		t.Fatalf("%d names, %d deleted, %d objects, %d and %d requests", s.names.count, s.deleted,
			s.objects.size(), len(s.requests), len(s.order))
	}
	checkNames(t, &s.names)
	for o := range s.objects.all() {
		id := o.ID
		_, many := s.wanted[id]
		if named, _ := s.names.get(o.Tenant, o.Name); (named == id) == o.Deleted ||
			many != (o.Wanted > 1 && !o.Deleted) || len(o.Replicas) == 0 || o.Epoch == 0 {
			t.Fatalf("object %+v", o)
		}
		seen := map[UUID]bool{}
		for _, r := range o.Replicas {
			if seen[r.Node] || s.nodes[r.Node] == nil {
				t.Fatalf("replica %+v of %+v", r, o)
			}
			seen[r.Node] = true
		}
	}
	for _, c := range s.certificates {
		if !c.Node.IsZero() && c.Revoked == 0 && s.nodes[c.Node] == nil {
			t.Fatalf("certificate %+v of programs on a node that is no member", c)
		}
	}
	mapped := map[TenantMember]string{}
	for _, x := range s.tenants {
		for _, m := range x.Members {
			if mapped[m] != "" {
				t.Fatalf("%+v is of the tenants %s and %s", m, mapped[m], x.Name)
			}
			mapped[m] = x.Name
		}
	}
	leased := map[LeaseDevice]bool{}
	for _, l := range s.leases {
		for _, d := range l.Devices {
			if !l.Granted || leased[d] {
				t.Fatalf("lease %+v: a device twice, or of one that waits", l)
			}
			leased[d] = true
		}
		if n := s.nodes[l.Node]; n == nil || n.Incarnation != l.Incarnation {
			t.Fatalf("lease %+v of a node that does not run", l)
		}
	}
	for k, d := range s.devices {
		if s.nodes[d.Node] == nil || k != d.Key {
			t.Fatalf("device %+v of no node", d)
		}
	}
}

func TestRestoreRefusesDamage(t *testing.T) {
	s := New()
	for _, raw := range randomLog(t, 3, 300) {
		if _, err := s.Apply(raw); err != nil {
			t.Fatal(err)
		}
	}
	snap, _ := s.Snapshot()
	for n := 0; n < len(snap); n += 7 {
		bad := slices.Clone(snap)
		bad[n] ^= 0x10
		if _, err := Restore(bytes.NewReader(bad)); err == nil {
			t.Fatalf("byte %d of %d flipped, and nobody noticed", n, len(snap))
		}
		if _, err := Restore(bytes.NewReader(snap[:n])); !errors.Is(err, object.ErrProtocol) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, cmd := range samples() {
		raw := mustEncode(f, uuid(1), cmd, 1)
		for _, n := range []int{len(raw), len(raw) / 2, len(raw) - 1} {
			f.Add(raw[:n])
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := Decode(raw)
		if err != nil {
			return
		}
		again, err := Encode(e.Request, e.Command)
		if err != nil || Stamp(again, e.Time) != nil || !bytes.Equal(raw, again) {
			t.Fatalf("%x reads as %+v, which is written %x (%v)", raw, e, again, err)
		}
		s := New()
		if _, err := s.Apply(raw); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzRestore(f *testing.F) {
	s := New()
	for _, raw := range randomLog(f, 1, 12) { // small: minimizing a large one eats all the time
		if _, err := s.Apply(raw); err != nil {
			f.Fatal(err)
		}
	}
	frozen := s.Freeze()
	frozen.body.version = snapshotVersion
	snap, err := frozen.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(snap[snapshotHeader : len(snap)-32])
	f.Fuzz(func(t *testing.T, body []byte) { // the body alone: no mutation would get past the checksum
		c := &codec{reading: true, buf: body}
		b := snapshotBody{version: snapshotVersion}
		b.walk(c)
		if c.end() != nil {
			return
		}
		s, err := b.state()
		if err != nil {
			return
		}
		frozen := s.Freeze()
		frozen.body.version = snapshotVersion
		again, err := frozen.Encode()
		if err != nil || !bytes.Equal(again[snapshotHeader:len(again)-32], body) {
			t.Fatalf("%x is written %x (%v)", body, again, err)
		}
	})
}

// TestNameChanges: published names that come and go are remembered in order, so many; what is forgotten is said to be.
func TestNameChanges(t *testing.T) {
	s := New()
	for i := range maxNameChanges + 10 {
		s.noteName(&Object{Tenant: "t", Name: fmt.Sprint(i)}, i%2 == 0)
	}
	for _, x := range []struct {
		from  uint64
		n     int
		whole bool
	}{{0, maxNameChanges, false}, {9, maxNameChanges, false}, {10, maxNameChanges, true},
		{maxNameChanges + 8, 2, true}, {maxNameChanges + 10, 0, true}, {maxNameChanges + 11, 0, false}} {
		list, now, missed, all := s.NameChanges(x.from)
		whole := !all && !slices.Contains(missed, "t")
		if len(list) != x.n || now != maxNameChanges+10 || whole != x.whole {
			t.Errorf("behind %d: %d of %d, %v, %v", x.from, len(list), now, missed, all)
		}
		for i, c := range list {
			if n := maxNameChanges + 10 - len(list) + i; c.Name != fmt.Sprint(n) || c.Published != (n%2 == 0) {
				t.Fatalf("behind %d, number %d: %+v", x.from, i, c)
			}
		}
	}
}

// TestNameChangesOfTenants: however many names a tenant publishes, no change of another one that has fewer is
// forgotten; what is remembered stays bounded with any number of tenants, and nothing is forgotten in silence.
func TestNameChangesOfTenants(t *testing.T) {
	s := New()
	s.noteName(&Object{Tenant: "quiet", Name: "before"}, true)
	for i := range 3 * maxNameChanges {
		s.noteName(&Object{Tenant: "loud", Name: fmt.Sprint(i)}, true)
	}
	s.noteName(&Object{Tenant: "quiet", Name: "after"}, true)
	list, now, missed, all := s.NameChanges(0)
	if all || !slices.Equal(missed, []string{"loud"}) || len(list) != maxNameChanges {
		t.Errorf("%d changes, missed %q, all %v", len(list), missed, all)
	}
	if list[0].Name != "before" || list[len(list)-1].Name != "after" || now != 3*maxNameChanges+2 {
		t.Errorf("from %+v to %+v, of %d", list[0], list[len(list)-1], now)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		s, many := New(), 1+random.IntN(2*maxNameChanges)
		var names []NameChange // all, in order
		for i := range 3 * maxNameChanges {
			o := &Object{Tenant: fmt.Sprint(random.IntN(many)), Name: fmt.Sprint(i)}
			s.noteName(o, true)
			names = append(names, NameChange{Tenant: o.Tenant, Name: o.Name})
		}
		n := random.IntN(len(names))
		list, _, missed, all := s.NameChanges(uint64(n))
		if s.nameChanges.held != maxNameChanges || len(s.nameChanges.tenants) > maxNameChanges {
			t.Fatalf("%d tenants: %d changes of %d are held", many, s.nameChanges.held, len(s.nameChanges.tenants))
		}
		for _, c := range names[n:] {
			switch {
			case len(list) > 0 && list[0].Name == c.Name:
				list = list[1:]
			case !all && !slices.Contains(missed, c.Tenant):
				t.Fatalf("%d tenants, behind %d: %+v is forgotten, missed %q", many, n, c, missed)
			}
		}
		if len(list) > 0 {
			t.Fatalf("%d tenants, behind %d: %+v is out of order", many, n, list[0])
		}
	}
}

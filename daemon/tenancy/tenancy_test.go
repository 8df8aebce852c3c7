package tenancy

import (
	"strings"
	"testing"
)

func TestCacheNamesAreSafeAndDistinct(t *testing.T) {
	tenants := []string{"", "uid:0", "uid:1", "../../etc", "..", ".", "a/b", "a_2fb", "a%2fb", "a\x00b", "A", "a",
		"uid_3a0", "é"}
	seen := map[string]string{}
	for _, tenant := range tenants {
		name := CacheName(tenant)
		if name == "" || name[0] == '.' || strings.ContainsAny(name, "/\x00%") {
			t.Errorf("CacheName(%q) = %q", tenant, name)
		}
		if other, taken := seen[name]; taken {
			t.Errorf("%q and %q are both %q", tenant, other, name)
		}
		seen[name] = tenant
	}
}

func TestResolve(t *testing.T) {
	if got := Resolve(1000, 7); got != "uid:1000" {
		t.Error(got)
	}
}

func TestTableFindsTenants(t *testing.T) {
	table, err := NewTable([]Tenant{{Name: "lab", Users: []uint32{7, 8}, Groups: []uint32{100},
		Certificates: []string{"bench"}}, {Name: "office", Users: []uint32{9}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		uid, gid uint32
		want     string
	}{{7, 1, "lab"}, {8, 100, "lab"}, {9, 100, "office"}, {10, 100, "lab"}, {10, 7, "uid:10"}, {0, 0, "uid:0"}} {
		if got := table.Local(x.uid, x.gid); got != x.want {
			t.Errorf("user %d, group %d: %q, want %q", x.uid, x.gid, got, x.want)
		}
	}
	if table.Reserved("bench") != "lab" || table.Reserved("other") != "" {
		t.Error("reserved names")
	}
}

func TestTableWithMore(t *testing.T) {
	table, err := NewTable([]Tenant{{Name: "lab", Users: []uint32{7}}})
	if err != nil {
		t.Fatal(err)
	}
	with, taken := table.With([]Tenant{{Name: "office", Users: []uint32{7, 8}, Certificates: []string{"c"}},
		{Name: "late", Users: []uint32{8, 9}, Groups: []uint32{3}}, {Name: "uid:5", Users: []uint32{6}}},
		map[string]bool{"late": true})
	if len(taken) != 1 || !strings.Contains(taken[0], "user 7") {
		t.Errorf("taken: %q", taken)
	}
	for uid, want := range map[uint32]string{7: "lab", 8: "office", 9: "late", 6: "uid:5", 5: "uid:5", 10: "uid:10"} {
		if got := with.Local(uid, 1); got != want {
			t.Errorf("user %d: %q, want %q", uid, got, want)
		}
	}
	if with.Local(10, 3) != "late" || with.Reserved("c") != "office" || !with.Disabled("late") || with.Disabled("lab") {
		t.Error("groups, certificates, disabled")
	}
	if table.Local(8, 1) != "uid:8" || table.Disabled("late") {
		t.Error("the first table was altered")
	}
}

func TestTableNamesEveryFault(t *testing.T) {
	_, err := NewTable([]Tenant{{Name: "a", Users: []uint32{7}},
		{Name: "b", Users: []uint32{7}, Certificates: []string{"c"}}, {Name: "uid:5", Certificates: []string{"c"}},
		{Name: ""}, {Name: "token:x"}, {Name: "node:1"}})
	for _, want := range []string{"user 7", "certificate c", `"uid:5"`, `""`, `"token:x"`, `"node:1"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in: %v", want, err)
		}
	}
}

func TestUsersOfTenants(t *testing.T) {
	if uid, gid := UserOf("uid:1000"); uid != 1000 || gid != nobody {
		t.Errorf("uid:1000 works as %d, %d", uid, gid)
	}
	a, _ := UserOf("lab")
	b, _ := UserOf("office")
	again, _ := UserOf("lab")
	if a != again || a != nobody && (a == b || a < tenantUsers) {
		t.Errorf("lab %d, office %d, lab again %d", a, b, again)
	}
	for table, want := range map[string]bool{"0 0 4294967295\n": true, "0 100000 65536\n": false,
		"0 0 1\n1879048192 5 10\n": true, "": false} {
		if mapped(table, tenantUsers) != want {
			t.Errorf("%q: %v", table, !want)
		}
	}
	if CheckAny("uid:5") != nil || CheckAny("uid:x") == nil || CheckAny("token:x") == nil || CheckAny("lab") != nil {
		t.Error("CheckAny")
	}
}

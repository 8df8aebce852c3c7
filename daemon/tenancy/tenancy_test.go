package tenancy

import (
	"strings"
	"testing"
)

func TestCacheNamesAreSafeAndDistinct(t *testing.T) {
	tenants := []string{"", "uid:0", "uid:1", "../../etc", "..", ".", "a/b", "a_2fb", "a%2fb", "a\x00b", "A", "a", "uid_3a0", "é"}
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

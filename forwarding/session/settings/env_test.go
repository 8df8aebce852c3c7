package settings

import (
	"slices"
	"testing"
)

// TestServersFromEnv: TENDRIL_SOCKET says where this node's daemon is, and TENDRIL_SERVER whose devices are shown.
func TestServersFromEnv(t *testing.T) {
	for _, c := range []struct {
		socket, server string
		want           []string
	}{
		{"", "", nil},
		{"/run/t.sock", "", nil},
		{"", "gpu1:7433,local", []string{"gpu1:7433", "local"}},
		{"/run/t.sock", "gpu1:7433,,local", []string{"gpu1:7433", "local"}},
	} {
		config := FromEnv(func(name string) string {
			return map[string]string{"TENDRIL_SOCKET": c.socket, "TENDRIL_SERVER": c.server}[name]
		})
		var names []string
		for _, s := range config.Servers {
			names = append(names, s.Name)
		}
		if !slices.Equal(names, c.want) {
			t.Errorf("socket %q, server %q: servers %q, want %q", c.socket, c.server, names, c.want)
		}
	}
}

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestIdentityStaysAndIncarnationChanges(t *testing.T) {
	dir := t.TempDir()
	first, err := LoadIdentity(dir, "alpha")
	if err != nil {
		t.Fatal(err)
	}
	second, err := LoadIdentity(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if first.Node != second.Node || second.Name != "alpha" {
		t.Errorf("second start is %v %q, first was %v %q", second.Node, second.Name, first.Node, first.Name)
	}
	if first.Incarnation == second.Incarnation {
		t.Error("two starts share an incarnation")
	}
	third, err := LoadIdentity(dir, "beta")
	if err != nil || third.Name != "beta" || third.Node != first.Node {
		t.Errorf("renamed: %+v, %v", third, err)
	}
	again, err := LoadIdentity(dir, "")
	if err != nil || again.Name != "beta" {
		t.Errorf("the new name was not kept: %+v, %v", again, err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestDamagedIdentityIsRefusedAndLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadIdentity(dir, "alpha"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, IdentityFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string][]byte{
		"empty":      {},
		"zeros":      make([]byte, len(whole)),
		"other name": []byte(strings.Replace(string(whole), "alpha", "alphb", 1)),
		"other id":   []byte(strings.Replace(string(whole), `"node": "`, `"node": "00`, 1)),
		"new layout": []byte(strings.Replace(string(whole), `"format": 1`, `"format": 2`, 1)),
		"not JSON":   []byte("node=1"),
		"huge":       make([]byte, maxIdentityBytes+1),
	}
	for n := 1; n < len(whole)-2; n += 7 { // every seventh way of being torn
		cases[fmt.Sprintf("torn at %d", n)] = whole[:n]
	}
	for name, raw := range cases {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			if id, err := LoadIdentity(dir, ""); !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), path) {
				t.Fatalf("got %+v, %v; want ErrIdentity with the path", id, err)
			}
			now, err := os.ReadFile(path)
			if err != nil || string(now) != string(raw) {
				t.Fatalf("the damaged file was altered (%v)", err)
			}
		})
	}
}

func TestIdentityNeedsADirectoryItMayWrite(t *testing.T) {
	if _, err := LoadIdentity(filepath.Join(t.TempDir(), "absent"), ""); err == nil {
		t.Fatal("an absent directory was accepted")
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"": true, "n1.example.org": true, "nœud": true, "a\nb": false, "a\x00": false, "\xff": false,
		strings.Repeat("a", MaxNameBytes): true, strings.Repeat("a", MaxNameBytes+1): false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("CheckName(%.20q) = %v", name, err)
		}
	}
}

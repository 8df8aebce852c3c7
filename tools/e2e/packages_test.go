package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

const packaging = "../../packaging"

// sourcesOf are what a package takes from the staged tree: its sources, as packaging/deb says them.
func sourcesOf(t *testing.T, name string) (sources []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(packaging, "deb", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\s+- \{src: ([^,]+),`).FindAllStringSubmatch(string(raw), -1) {
		sources = append(sources, m[1])
	}
	return sources
}

// takes reports whether a source names the file.
func takes(source, file string) bool {
	if strings.HasSuffix(source, "/") {
		return strings.HasPrefix(file, source)
	}
	matched, err := filepath.Match(source, file)
	return err == nil && matched
}

// TestPackagesContents: what make install puts somewhere is in a package, each source of a package is there, and the
// client's has no unit. The packages themselves are tried by make test-packages.
func TestPackagesContents(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	built, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rig.Output(exec.Command("bash", filepath.Join(packaging, "install.sh"), built, root, "/usr")); err != nil {
		t.Fatal(err)
	}
	sources := map[string][]string{"tendril": sourcesOf(t, "tendril"), "tendril-client": sourcesOf(t, "tendril-client")}
	used := map[string]bool{"usr/lib/python3/": true} // put there by packages.sh
	staged := os.DirFS(root)
	err = fs.WalkDir(staged, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		in := 0
		for name, list := range sources {
			for _, source := range list {
				if takes(source, file) {
					used[source] = true
					in++
					if name == "tendril-client" && strings.Contains(file, "systemd") {
						t.Errorf("tendril-client starts a daemon: %s", file)
					}
				}
			}
		}
		if in == 0 {
			t.Errorf("%s is installed and in no package", file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range sources {
		for _, source := range list {
			if !used[source] {
				t.Errorf("%s takes %s, which is not there", name, source)
			}
		}
	}
	unit, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system/tendril.service"))
	for _, want := range []string{"Delegate=yes", "TasksMax=", "RuntimeDirectory=tendril", "ExecStart=/usr/bin/tendril daemon"} {
		if !strings.Contains(string(unit), want) {
			t.Errorf("the unit has no %s (%v)", want, err)
		}
	}
}

// TestMaintainerScripts: dpkg's scripts are what a shell understands.
func TestMaintainerScripts(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob(filepath.Join(packaging, "deb", "*"))
	if err != nil || len(scripts) < 5 {
		t.Fatal(scripts, err)
	}
	for _, s := range scripts {
		if !strings.HasSuffix(s, ".yaml") {
			if out, err := rig.Output(exec.Command("sh", "-n", s)); err != nil {
				t.Errorf("%s: %v\n%s", s, err, out)
			}
		}
	}
}

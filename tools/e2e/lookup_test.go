package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

// firstCommands is a user's first minute on a machine with a system's daemon: nothing says where that is. Arguments:
// the directory of the binaries, one to work in, that of the Python client.
const firstCommands = `set -e
bin=$1 dir=$2 python=$3 uid=4242
mount -t tmpfs tmpfs /run
mkdir -p /run/user/$uid; chown $uid:$uid /run/user/$uid
unset TENDRIL_SOCKET TENDRIL_SERVER
XDG_RUNTIME_DIR=/run/user/0 "$bin/tendril" daemon --state-dir "$dir/state" --capacity 64MiB --listen none >"$dir/log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon' EXIT
as() { setpriv --reuid $uid --regid $uid --clear-groups env -i PATH="$PATH" HOME=/nonexistent XDG_RUNTIME_DIR=/run/user/$uid "$@"; }
until as "$bin/tendril" status >"$dir/out" 2>&1; do kill -0 $daemon; sleep 0.05; done
as "$bin/tendril" put --name hello /etc/hostname >"$dir/out"
XDG_RUNTIME_DIR=/run/user/0 "$bin/tendril" version >"$dir/out"
as env TENDRIL_SSH="$dir/ssh" "$bin/tendril" --server "ssh://here$bin/tendril" stat hello >"$dir/out"
as "$dir/c"
if [ -n "$(command -v python3)" ]; then as env PYTHONPATH="$python" PYTHONDONTWRITEBYTECODE=1 python3 -c 'import tendril; tendril.connect().get("hello")'; fi
if [ -n "$(command -v clinfo)" ]; then as env OCL_ICD_VENDORS=/nonexistent OCL_ICD_FILENAMES="$bin/libtendril_opencl.so" clinfo -l >"$dir/out"; "$bin/tendril" session ls >"$dir/out"; fi
as sh -c 'echo $$ >"$0/pid"; exec "$@"' "$dir/own" "$bin/tendril" daemon --state-dir "$dir/own/state" --capacity 64MiB --listen none >"$dir/log-own" 2>&1 &
until as "$bin/tendril" status 2>&1 | grep -q "socket  */run/user/$uid"; do kill -0 $!; sleep 0.05; done
kill "$(cat "$dir/own/pid")"; wait $!
as "$bin/tendril" stat hello >"$dir/out"
chmod 600 /run/tendril/tendril.sock
as "$bin/tendril" status >"$dir/out" 2>&1 && exit 1
cat "$dir/out"
`

// TestFirstCommand: who has no daemon reaches the system's with every client, and one's own comes first.
func TestFirstCommand(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: only root runs a system's daemon")
	}
	dir, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	for d := work; d != "/"; d = filepath.Dir(d) {
		if info, err := os.Stat(d); err == nil && info.Mode()&0o001 == 0 {
			if err := os.Chmod(d, info.Mode()|0o011); err != nil {
				t.Fatal(err)
			}
		}
	}
	if out, err := exec.Command("unshare", "-m", "setpriv", "--reuid", "4242", "--clear-groups",
		filepath.Join(dir, "tendril"), "version").CombinedOutput(); err != nil {
		t.Skipf("skipped: another user cannot run %s here: %v %s", dir, err, out)
	}
	source := "#include <tendril.h>\nint main(void) { tendril *t; return tendril_connect(0, &t); }\n"
	ssh := "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift 2\nexec sh -c \"$*\"\n"
	must(t, os.WriteFile(filepath.Join(work, "c.c"), []byte(source), 0o644))
	must(t, os.WriteFile(filepath.Join(work, "ssh"), []byte(ssh), 0o755))
	must(t, os.Mkdir(filepath.Join(work, "own"), 0o700))
	must(t, os.Chown(filepath.Join(work, "own"), 4242, 4242))
	if _, err := rig.Output(exec.Command("cc", "-I", filepath.Join(dir, "include"), "-o", filepath.Join(work, "c"),
		filepath.Join(work, "c.c"), filepath.Join(dir, "lib", "libtendril.a"), "-pthread")); err != nil {
		t.Fatal(err)
	}
	python, err := filepath.Abs("../../client/python")
	must(t, err)
	out, err := rig.Output(exec.CommandContext(t.Context(), "unshare", "-m", "--propagation", "private", "sh", "-c",
		firstCommands, "sh", dir, work, python))
	said, _ := os.ReadFile(filepath.Join(work, "out"))
	if err != nil || !strings.Contains(out, "does not admit you") || strings.Contains(out, "tendril daemon") {
		t.Errorf("%v: %s\nlast: %s", err, out, said)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

#!/bin/sh
# Checks that get and release through the index make no system call: strace watches a million of them. Only the recv by
# which the library checks once a second that the daemon lives is allowed. LOOP: the program; TENDRIL_BIN: the daemon.
set -eu
[ -n "${TENDRIL_BIN:-}" ] && [ -x "$TENDRIL_BIN" ] || { echo "index: skipped: no daemon"; exit 0; }
command -v strace >/dev/null || { echo "index: skipped: strace is not installed (Debian package strace)"; exit 0; }
strace -o /dev/null true 2>/dev/null || { echo "index: skipped: strace may not watch processes here"; exit 0; }
dir=$(mktemp -d)
export TENDRIL_SOCKET="$dir/s" TENDRIL_STATE_DIR="$dir/state" TENDRIL_VENDORS="$dir/vendors"
export TENDRIL_CAPACITY=256MiB TENDRIL_LISTEN=none
mkdir "$dir/vendors"
"$TENDRIL_BIN" daemon >"$dir/log" 2>&1 </dev/null &
daemon=$!
trap 'kill $daemon 2>/dev/null || true; wait $daemon 2>/dev/null || true; rm -rf "$dir"' EXIT
n=0
until "$TENDRIL_BIN" status >/dev/null 2>&1; do
  n=$((n + 1))
  [ $n -lt 3000 ] || { cat "$dir/log"; exit 1; }
  sleep 0.1
done
# calls ROUNDS: the system calls between the two lines, and in $dir/through how many gets were through the index
calls() {
  strace -qq -o "$dir/trace" "$LOOP" loop "$1" >"$dir/out"
  sed -n '3p' "$dir/out" >"$dir/through"
  sed -n '/^write(1, "begin/,/^write(1, "end/p' "$dir/trace" |
    grep -v '^write(1, "\(begin\|end\)' | grep -v 'MSG_PEEK|MSG_DONTWAIT' || true
}
some=$(TENDRIL_INDEX=off calls 100 | wc -l)
[ "$some" -ge 100 ] || { echo "index: $some system calls for 100 gets over the socket: this shows nothing"; exit 1; }
none=$(TENDRIL_INDEX=on calls 1000000)
through=$(cat "$dir/through")
[ "$through" = 1000000 ] || { echo "index: $through of 1000000 gets were through the index"; exit 1; }
[ -z "$none" ] || { echo "index: system calls for gets through the index:"; echo "$none" | head; exit 1; }
peeks=$(grep -c 'MSG_PEEK|MSG_DONTWAIT' "$dir/trace" || true)
echo "index: 1000000 gets and releases without a system call (looks at the socket meanwhile: $peeks)"

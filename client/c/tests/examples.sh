#!/bin/sh
# Runs the examples as their comments say, against a daemon of its own. TENDRIL_BIN: the daemon; EXAMPLES: their folder;
# FAKE_CUDA: the CUDA driver for tests.
set -eu
[ -n "${TENDRIL_BIN:-}" ] && [ -x "$TENDRIL_BIN" ] || { echo "examples: skipped: no daemon"; exit 0; }
dir=$(mktemp -d)
export TENDRIL_SOCKET="$dir/s" TENDRIL_STATE_DIR="$dir/state" TENDRIL_VENDORS="$dir/vendors"
export TENDRIL_CAPACITY=256MiB TENDRIL_LISTEN=none TENDRIL_CUDA_DRIVER="${FAKE_CUDA:-none}"
mkdir "$dir/vendors"
"$TENDRIL_BIN" daemon >"$dir/log" 2>&1 </dev/null &
daemon=$!
trap 'kill $daemon 2>/dev/null || true; wait $daemon 2>/dev/null || true; rm -rf "$dir"' EXIT
n=0
until "$EXAMPLES/share" put ready yes 2>/dev/null; do
  n=$((n + 1))
  [ $n -lt 3000 ] || { cat "$dir/log"; exit 1; }
  sleep 0.1
done
( sleep 0.2; "$EXAMPLES/share" put greeting "hello, world" ) &
[ "$("$EXAMPLES/share" get greeting)" = "hello, world" ]
"$EXAMPLES/share" delete greeting
if "$EXAMPLES/share" put ready again 2>"$dir/taken"; then echo "a taken name was taken again"; exit 1; fi
grep -q ready "$dir/taken"
if [ -n "${FAKE_CUDA:-}" ]; then
  "$EXAMPLES/gpu" put cuda:1 tensor "in a GPU's memory"
  [ "$("$EXAMPLES/gpu" get tensor)" = "in a GPU's memory" ]
  if "$EXAMPLES/gpu" put cuda:9 other text 2>"$dir/none"; then echo "a GPU that is not there was used"; exit 1; fi
  grep -q "cuda:9" "$dir/none"
  if "$EXAMPLES/share" get tensor 2>"$dir/elsewhere"; then echo "a GPU's memory was mapped as the host's"; exit 1; fi
  grep -q "memory of GPU" "$dir/elsewhere"
  "$EXAMPLES/share" delete tensor
fi
"$EXAMPLES/camera" produce 20 &
camera=$!
"$EXAMPLES/camera" consume >"$dir/frames"
wait $camera
[ "$(wc -l <"$dir/frames")" = 20 ] && [ "$(tail -n 1 "$dir/frames")" = "frame 20: 19" ]
"$EXAMPLES/share" put steady "as it was"
"$EXAMPLES/steady" steady 15 >"$dir/steady" &
steady=$!
until [ -s "$dir/steady" ]; do sleep 0.05; done
before=$daemon
"$TENDRIL_BIN" daemon --takeover >>"$dir/log" 2>&1 </dev/null &
daemon=$!
wait $before
wait $steady
[ "$(grep -c '^as it was (there)$' "$dir/steady")" = 15 ] || { cat "$dir/steady"; exit 1; }
echo "examples: passed"

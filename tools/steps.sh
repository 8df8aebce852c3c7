#!/bin/bash
# Runs targets of the Makefile side by side, and says at the end which of them failed. What a target says comes as a
# whole, when it ends; until then, and after a run that was cut off, it stands in bin/test/TARGET.log.
# Each is a session of its own: where the kernel has autogroups (sched(7): not in a CPU cgroup other than the root), it
# shares the processor between sessions, and every worker process of a node is one. When all steps were one session,
# they got no more than one such worker, and nodes and clusters under test did not answer for seconds.
# Arguments: how many at a time, the targets in the order in which they begin.
set -uo pipefail
set -m # a step is a group of its own: stop ends it as a whole
jobs=$1
shift
work=$(mktemp -d)
logs=bin/test
read -r began _ </proc/uptime # seconds
mkdir -p $logs && rm -f $logs/*.log
trap 'rm -rf "$work"' EXIT
TIMEFORMAT='%R s, %U s of user and %S s of system time'

# stop ends who is under way: the steps, or a step's session, which is a process until it is a group.
stop() {
  for group in $(jobs -p); do kill -- "-$group" 2>/dev/null || kill "$group" 2>/dev/null; done
  exit 130
}
trap stop INT TERM

# step runs a target. There is no job control in here: bash has what runs in the background ignore SIGINT and SIGQUIT,
# and all that a step starts would.
step() {
  trap stop INT TERM
  printf '== %s: %s begins\n' "$(date +%H:%M:%S)" "$1"
  {
    time {
      setsid env --default-signal=INT,QUIT "${MAKE:-make}" --no-print-directory "$1" >"$logs/$1.log" 2>&1 &
      wait $!
    }
  } 2>"$work/$1.time" && touch "$work/$1.passed"
  ended "$1"
}

# ended prints what a target said; two that end at once do not mix.
ended() {
  local how=FAILED
  [ ! -e "$work/$1.passed" ] || how=passed
  exec 9>"$work/lock"
  flock 9
  printf '\n== %s: %s %s: %s\n' "$(date +%H:%M:%S)" "$1" "$how" "$(cat "$work/$1.time")"
  cat "$logs/$1.log"
}

# stalls prints, where it may be read, what the kernel said since this began of processors on which nothing else ran for
# 20 s and more: also kernel threads and this shell did not, and whoever is waited for did not either.
stalls() {
  dmesg 2>/dev/null | awk -F '[][ ]+' -v began="$began" \
    '$2 >= began && /workqueue lockup|soft lockup|detected stalls on/ { if (!n++) print; last = $0 }
     END { if (n > 1) print "  and " n - 1 " more, the last one:\n" last }'
}

for target; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  step "$target" &
done
wait
failed=
for target; do # a step whose shell was killed has not passed
  [ -e "$work/$target.passed" ] || failed+="$target "
done
if [ -n "$failed" ]; then
  stalled=$(stalls)
  [ -z "$stalled" ] || printf '\n== The kernel stood still meanwhile; tests may be red for that:\n%s\n' "$stalled"
  printf '\n== %s: FAILED: %s\n' "$(date +%H:%M:%S)" "$failed"
  exit 1
fi
printf '\n== %s: all passed\n' "$(date +%H:%M:%S)"

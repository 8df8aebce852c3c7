#!/bin/bash
# Runs targets of the Makefile side by side, and says at the end which of them failed. What a target says comes as a whole, when it ends;
# until then, and after a run that was cut off, it stands in bin/test/TARGET.log.
# Each is a session of its own: the kernel shares the processor between sessions (autogroup, sched(7)), and every worker process of a
# node is one. All steps in one session would get no more than one such worker, and nodes and clusters under test no answer for seconds.
# Arguments: how many at a time, the targets in the order in which they begin; TARGET:NICE for one that gives way to others, or gets the
# processor before them, where that is allowed.
set -uo pipefail
set -m # a step is a group of its own; without this the shell has what runs in the background ignore SIGINT, and with it all that a step starts
jobs=$1
shift
work=$(mktemp -d)
logs=bin/test
mkdir -p $logs && rm -f $logs/*.log
trap 'rm -rf "$work"' EXIT
trap 'for group in $(jobs -p); do kill -- "-$group" 2>/dev/null; done; exit 130' INT TERM # whoever is under way ends with us
TIMEFORMAT='%R s, %U s of user and %S s of system time'

# step runs a target; $2: its session's nice value.
step() {
  local session
  printf '== %s: %s begins\n' "$(date +%H:%M:%S)" "$1"
  {
    time {
      # shellcheck disable=SC2016 # of the shell that it starts
      setsid bash -c '[ "$1" = 0 ] || printf %s "$1" 2>/dev/null >/proc/self/autogroup; shift; exec "$@"' - "$2" \
        "${MAKE:-make}" --no-print-directory "$1" >"$logs/$1.log" 2>&1 &
      session=$!
      trap 'kill -- "-$session" 2>/dev/null; exit 130' INT TERM
      wait $session
    }
  } 2>"$work/$1.time" || touch "$work/$1.failed"
  ended "$1"
}

# ended prints what a target said; two that end at once do not mix.
ended() {
  exec 9>"$work/lock"
  flock 9
  printf '\n== %s: %s %s: %s\n' "$(date +%H:%M:%S)" "$1" "$([ -e "$work/$1.failed" ] && echo FAILED || echo passed)" "$(cat "$work/$1.time")"
  cat "$logs/$1.log"
}

for target; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  nice=${target#*:}
  [ "$nice" != "$target" ] || nice=0
  step "${target%%:*}" "$nice" &
done
wait
failed=$(cd "$work" && ls ./*.failed 2>/dev/null | sed 's|^./||; s|\.failed$||' | tr '\n' ' ')
[ -z "$failed" ] || { printf '\n== %s: FAILED: %s\n' "$(date +%H:%M:%S)" "$failed"; exit 1; }
printf '\n== %s: all passed\n' "$(date +%H:%M:%S)"

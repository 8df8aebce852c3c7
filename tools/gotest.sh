#!/bin/bash
# go test. With RERUN=1, as CI has it, a red test is run once more, alone. If it is green then, the run is green, and the test is listed
# in bin/unsteady, which make test prints at its end. A data race, a panic, a timeout, what a package finds after its tests (leaks), and
# more than three red tests are never run again. Nor does a run hang until its -timeout: where no test has begun, ended or said anything
# for SILENT seconds, the test processes that have run for as long say where they wait, and end, and the run is red.
# Arguments: the go command, the packages as one word, flags of go test.
set -uo pipefail
go=$1 packages=$2
shift 2
if [ -z "${RERUN:-}" ]; then
  # shellcheck disable=SC2086 # packages are several
  exec "$go" test "$@" $packages
fi
# No single test takes as long on the slowest machine, and what is being compiled is no test process yet.
silent=${SILENT:-900}
work=$(mktemp -d)

# tests lists the test processes below a process. What those have started is theirs.
tests() {
  local child
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
    case $(readlink /proc/"$child"/exe) in
    *.test) echo "$child" ;;
    *) tests "$child" ;;
    esac
  done
}

watch() {
  local -A since=()
  local size=0 now heard=$SECONDS process
  while sleep 15; do
    now=$(stat -c %s "$work/events")
    [ "$now" = "$size" ] || size=$now heard=$SECONDS
    for process in $(tests $$); do
      : "${since[$process]:=$SECONDS}"
      if [ $((SECONDS - heard)) -gt "$silent" ] && [ $((SECONDS - since[$process])) -gt "$silent" ]; then
        echo "No test of $(readlink /proc/"$process"/exe) has begun, ended or said anything for $silent s." >>"$work/hung"
        kill -QUIT "$process"
      fi
    done
  done
}

watch >/dev/null 2>&1 </dev/null &
trap 'kill $!; rm -rf "$work"' EXIT
"$go" tool -modfile=tools/tools.mod gotestsum --format standard-quiet --rerun-fails=1 --rerun-fails-max-failures=3 \
  --rerun-fails-abort-on-data-race --rerun-fails-run-root-test --rerun-fails-report "$work/again" --jsonfile "$work/events" \
  --packages "$packages" -- "$@" | tee "$work/out"
status=$?
if [ -s "$work/hung" ]; then
  sort -u "$work/hung"
  exit 1
fi
[ $status -eq 0 ] || exit $status
if [ -s "$work/again" ]; then
  mkdir -p bin && cat "$work/again" >>bin/unsteady
elif grep -q '^DONE 2 runs' "$work/out"; then
  echo "A package failed apart from its tests: run again, they say nothing of it."
  exit 1
fi

#!/bin/bash
# go test. With RERUN=1, as CI has it, a red test is run once more, alone. If it is green then, the run is green, and the test is listed
# in bin/unsteady, which make test prints at its end. A data race, a panic, a timeout, what a package finds after its tests (leaks), and
# more than three red tests are never run again.
# Arguments: the go command, the packages as one word, flags of go test.
set -uo pipefail
go=$1 packages=$2
shift 2
if [ -z "${RERUN:-}" ]; then
  # shellcheck disable=SC2086 # packages are several
  exec "$go" test "$@" $packages
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$go" tool -modfile=tools/tools.mod gotestsum --format standard-quiet --rerun-fails=1 --rerun-fails-max-failures=3 \
  --rerun-fails-abort-on-data-race --rerun-fails-run-root-test --rerun-fails-report "$work/again" --packages "$packages" -- "$@" |
  tee "$work/out" || exit
if [ -s "$work/again" ]; then
  mkdir -p bin && cat "$work/again" >>bin/unsteady
elif grep -q '^DONE 2 runs' "$work/out"; then
  echo "A package failed apart from its tests: run again, they say nothing of it."
  exit 1
fi

#!/bin/bash
# What no test sees: mistakes and unused code (staticcheck.conf), functions that nothing reaches, a go.mod that is not tidy.
# The tools are pinned in tools/tools.mod, apart from go.mod: what they need is nothing of Tendril's.
# Argument: the go command.
set -uo pipefail
go=${1:-go}
tool() { "$go" tool -modfile=tools/tools.mod "$@"; }
bad=0
export GOGC=400 # half of the time is the collector's otherwise

tool staticcheck ./... || bad=1

# C calls what forwarding/icd exports; the others serve tests.
dead=$(tool deadcode ./...) || { echo "$dead"; exit 1; }
dead=$(grep -vE '^(forwarding/icd|forwarding/cuda/fakecuda|forwarding/fakedriver|forwarding/opencl/nullcl|forwarding/trace/tracetest|tools/browser|tools/e2e/[a-z]+)/' <<<"$dead")
[ -z "$dead" ] || { echo "$dead"; echo "Delete it, or move it to the tests if they alone need it."; bad=1; }

"$go" mod tidy -diff || { echo "go.mod or go.sum is not tidy: run go mod tidy."; bad=1; }
exit $bad

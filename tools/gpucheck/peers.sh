#!/usr/bin/env bash
# Where the time of a copy between two GPUs goes: the driver's calls, PyTorch's copies, and those of objects, from Go
# and from Python, with the keeper's own calls.
#
#     tools/gpucheck/peers.sh [OUT-DIRECTORY]
#
# It needs what `make gpucheck-build` builds, python3 with PyTorch, and two GPUs. Where there is a bin/tendril.before,
# that and bin/tendril are measured in turn.
set -u
cd "$(dirname "$0")/../.."
out=${1:-gpucheck-out}
mkdir -p "$out"
out=$(realpath "$out") # the keeper has a directory of its own
builds=bin/tendril
[ -e bin/tendril.before ] && builds="bin/tendril.before bin/tendril"
export PYTHONPATH=client/python

copies() { # BUILD …: bin/gpu/memory -peers, without the daemon's greetings
	local build=$1
	shift
	timeout 60 bin/gpu/memory -peers -tendril "$build" "$@" 2>&1 | grep -v 'level=info' | tail -40
}

nvidia-smi --query-gpu=index,name,driver_version,clocks.sm,pstate --format=csv,noheader
nvidia-smi topo -m | head -8
echo; echo "== call by call"
timeout 60 bin/gpu/peer 0 1 2>&1 | tee "$out/peer"
for round in 1 2; do
	for build in $builds; do
		echo; echo "== Go, $build, round $round"
		copies "$build"
	done
done
echo; echo "== Python"
timeout 60 python3 tools/gpucheck/peers.py bin/tendril 2>&1 | tail -40
for build in $builds; do
	echo; echo "== Python without PyTorch, $build"
	PEERS_OBJECTS_ONLY=1 timeout 30 python3 tools/gpucheck/peers.py "$build" 2>&1 | tail -40
done
echo; echo "== traced"
CUDA_TRACE=$out/trace copies bin/tendril -driver "$PWD/bin/gpu/libcudatrace.so"
python3 tools/gpucheck/tracelook.py "$out"/trace.* | tee "$out/trace-look"
exit 0

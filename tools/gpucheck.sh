#!/usr/bin/env bash
# Checks and measures a node on a vendor's GPU driver, on a machine that has no
# Go and no compiler: everything was built before by `make gpucheck-build`.
#
#     tools/gpucheck.sh ICD-LIBRARY [OUT-DIRECTORY [DEVICES]]      e.g. libnvidia-opencl.so.1
#
# DEVICES chooses as --device does; with NVIDIA's library it is platform=NVIDIA, so that no other driver's device is taken. Each step prints what it saw; the exit status is the number of steps that failed.
set -u
cd "$(dirname "$0")/.."
library=${1:?name the OpenCL driver library, e.g. libnvidia-opencl.so.1}
out=${2:-gpucheck-out}
case $library in *nvidia*) devices=${3:-platform=NVIDIA} ;; *) devices=${3:-} ;; esac
mkdir -p "$out"
work=$(mktemp -d)
chmod 755 "$work" # workers run as another user and read the driver list
mkdir -p "$work/vendors" "$work/state"
echo "$library" >"$work/vendors/driver.icd"
export OCL_ICD_FILENAMES=$library # some loaders look at nothing else
export PATH=$PWD/bin/gpu:$PATH
export OCL_ICD_VENDORS=$work/vendors OPENCL_VENDOR_PATH=$work/vendors TENDRIL_SOCKET=$work/tendril.sock TENDRIL_STATE_DIR=$work/state
failed=0

step() { # NAME COMMAND…: runs it, times it, counts a failure
	local name=$1 start end
	shift
	echo; echo "== $name"
	start=$(date +%s%N)
	if ! "$@"; then
		failed=$((failed + 1))
		echo "-- FAILED: $name"
	fi
	end=$(date +%s%N)
	echo "-- $(((end - start) / 1000000)) ms"
}

forwarded() { timeout 120 bin/tendril run ${devices:+--device "$devices"} -- "$@"; }
native() { timeout 120 "$@"; }

start_daemon() {
	bin/tendril daemon >"$out/daemon.log" 2>&1 &
	daemon=$!
	for _ in $(seq 100); do
		bin/tendril devices --json 2>/dev/null | grep -q uuid && return 0
		sleep 0.2
	done
	cat "$out/daemon.log"
	return 1
}

same_info() { # clinfo, native against forwarded
	native bin/gpu/clinfo >"$out/clinfo.native" 2>&1
	grep -E "Number of platforms|Device Name" "$out/clinfo.native"
	forwarded bin/gpu/clinfo >"$out/clinfo.forwarded" 2>&1 || return 1
	echo "lines that differ (masked by design: docs/OPENCL.md):"
	diff "$out/clinfo.native" "$out/clinfo.forwarded" | grep '^[<>]' | head -90
}

same_edges() { # the demonstration's filter: the same bytes
	native bin/demo-filter -in tools/demo/photo/raccoon.jpg -out "$work/a" || return 1
	forwarded bin/demo-filter -in tools/demo/photo/raccoon.jpg -out "$work/b" || return 1
	cmp "$work/a" "$work/b" && echo "the same $(stat -c %s "$work/a") bytes"
}

same_calls() { # every program of the differential runner
	local bad=0
	for program in bin/gpu/diff-*; do
		local name=${program##*/diff-}
		native "$program" >"$work/$name.native" 2>&1
		echo "exit $?" >>"$work/$name.native"
		forwarded "$program" >"$work/$name.forwarded" 2>&1
		echo "exit $?" >>"$work/$name.forwarded"
		echo "$name: $(wc -l <"$work/$name.native") lines, $(diff "$work/$name.native" "$work/$name.forwarded" | grep -c '^[<>]') differ"
		diff "$work/$name.native" "$work/$name.forwarded" | grep '^[<>]' >>"$out/differences"
		diff "$work/$name.native" "$work/$name.forwarded" | head -16
		tail -n 1 "$work/$name.forwarded" | grep -q "exit 0" && continue
		bad=1
		echo "$name: forwarded $(tail -n 1 "$work/$name.forwarded"), native $(tail -n 1 "$work/$name.native")"
	done
	return $bad
}

every_wrong() { # OUT RUN…: bin/gpu/wrong, begun again behind the function in which a driver ended it
	local to=$1 behind=- rc last
	shift
	: >"$to"
	while :; do
		"$@" bin/gpu/wrong "$behind" >"$to.part" 2>&1
		rc=$?
		grep -a '^cl' "$to.part" >>"$to"
		[ $rc = 0 ] && return 0
		last=$(grep -a '^cl' "$to.part" | tail -n 1 | grep -o '^cl[A-Za-z]*')
		[ -n "$last" ] || { cat "$to.part"; return 1; }
		echo "$last: ended with $rc" >>"$to"
		behind=$last
	done
}

wrong_calls() { # every argument of every function wrong in turn: what the vendor answers, and what is answered here
	every_wrong "$out/wrong.native" native && every_wrong "$out/wrong.forwarded" forwarded || return 1
	diff "$out/wrong.native" "$out/wrong.forwarded" >"$out/wrong.diff"
	echo "$(wc -l <"$out/wrong.native") lines, $(grep -c '^[<>]' "$out/wrong.diff") differ ($out/wrong.diff)"
	echo "natively ended in: $(grep -c ': ended with' "$out/wrong.native") functions; forwarded: $(grep -c ': ended with' "$out/wrong.forwarded")"
	! grep ': ended with' "$out/wrong.forwarded"
}

measure() { # clbench: native, forwarded, native, forwarded …; each test twice, of which the second counts
	local tests="kernel_finish kernels_1000 chain_100 chain_100_one_queue write_128MiB read_128MiB map_16MiB write_4B write_kernel_read_4KiB create_release_4KiB"
	for round in 1 2 3; do
		tr ' ' '\n' <<<"$tests" | sed p | native bin/gpu/clbench >"$work/n$round" || return 1
		tr ' ' '\n' <<<"$tests" | sed p | forwarded bin/gpu/clbench >"$work/f$round" || return 1
	done
	local i=1
	printf '%-26s %16s %16s   (three rounds each: ns, or bytes/s)\n' test native forwarded
	for name in $tests; do
		i=$((i + 2))
		for round in 1 2 3; do
			printf '%-26s %16s %16s\n' "$name" "$(sed -n "${i}s/ .*//p" "$work/n$round")" "$(sed -n "${i}s/ .*//p" "$work/f$round")"
		done
	done
}

far() { # PROGRAM …: as another machine's, over TLS
	local port
	port=$(bin/tendril status --json | grep -o '"listen": *"[^"]*' | grep -o '[0-9]*$')
	if [ ! -d "$work/far" ]; then
		mkdir -p "$work/far"
		bin/tendril token create --once --expires 10m | far_run bin/tendril login "localhost:$port" --name far >/dev/null || return 1
	fi
	far_run timeout 120 bin/tendril run --server "localhost:$port" ${devices:+--device "$devices"} -- "$@"
}
far_run() { env -u TENDRIL_SOCKET HOME="$work/far" XDG_CONFIG_HOME="$work/far" XDG_RUNTIME_DIR="$work/far" "$@"; }

rows() { # clrows: native, over the socket, over TLS, three rounds in turn; each test twice, of which the second counts
	local loops round way
	loops=$(echo loops | native bin/gpu/clrows | tail -n 1) || return 1
	local tests=("length 10" "length 30" "length 60" "length 100" "length 300" "length 730" "length 1000" "length 3000"
		"length 10000" polled writes_16x1MiB reads_16x1MiB writes_1000x64B disorder_100 there_and_back_4KiB
		there_and_back_1MiB read_1MiB map_1MiB map_512MiB stream_1MiB images "stencil 32" "stencil 256")
	for round in 1 2 3; do
		for way in native forwarded far; do
			{ echo "use ${loops%% *}"; printf '%s\n' "${tests[@]}" | sed p; } | "$way" bin/gpu/clrows >"$work/$way.$round" || return 1
			sed -n '4~2p' "$work/$way.$round" >"$work/rows.$way.$round"
		done
	done
	printf '%-20s %14s %14s %14s   %s\n' test native unix TLS '(medians of three; ns, or bytes or steps a second) processor time of each'
	local i=0 line test
	for test in "${tests[@]}"; do
		i=$((i + 1))
		line=$(printf '%-20s' "$test")
		for column in 1 3; do
			for way in native forwarded far; do
				line+=$(printf ' %14s' "$(for round in 1 2 3; do sed -n "${i}p" "$work/rows.$way.$round"; done | cut -d' ' -f$column | sort -g | sed -n 2p)")
			done
		done
		echo "$line"
	done
}

objects() { # an object of the store as a device's buffer: a large one, and one that shares its segment
	local size
	for size in 4194307 1001; do
		head -c "$size" /dev/urandom >"$work/object-$size"
		bin/tendril put "$work/object-$size" --name "object-$size" >/dev/null || return 1
		forwarded bin/gpu/objectsum "object-$size" >"$work/sum" || return 1
		od -An -v -tu1 "$work/object-$size" | awk -v n="$size" '{for (i = 1; i <= NF; i++) s += $i} END {printf "%d bytes, sum %d\n", n, s}' >"$work/want"
		cmp "$work/sum" "$work/want" && cat "$work/sum" || return 1
		bin/tendril rm "object-$size" || return 1
	done
}

quota() { # what the device's own memory may be is bounded: a daemon of its own that allows 100 MiB
	local rc
	export TENDRIL_SOCKET=$work/quota.sock TENDRIL_STATE_DIR=$work/quota-state
	TENDRIL_QUOTA_DEVICE=100MiB bin/tendril daemon >"$out/quota.log" 2>&1 &
	local of_its_own=$!
	for _ in $(seq 100); do
		bin/tendril devices --json 2>/dev/null | grep -q uuid && break
		sleep 0.2
	done
	printf 'open\nbuffer 62914560\nbuffer 62914560\nbuffer 31457280\nadd 1\nverify\n' | forwarded bin/gpu/session | tee "$work/quota"
	bin/tendril top | tail -n 5
	# 60 MiB, no more 60, but 30; and the session goes on. Devices that compute on shared memory have no memory of their own to bound.
	printf 'buffer 0 object\nbuffer -4 none\nbuffer 0 object\nadd 0\ngood\n' | cmp - <(tail -n +2 "$work/quota")
	rc=$?
	if bin/tendril devices --json | grep -q '"in_place": true'; then echo "in place: no device memory to bound"; rc=0; fi
	kill -TERM "$of_its_own" && wait "$of_its_own"
	export TENDRIL_SOCKET=$work/tendril.sock TENDRIL_STATE_DIR=$work/state
	return $rc
}

admission() { # as many sessions as a GPU has room for: a daemon of its own, with room for one
	local rc=0 most
	export TENDRIL_SOCKET=$work/admit.sock TENDRIL_STATE_DIR=$work/admit-state
	most=$(TENDRIL_SOCKET=$work/tendril.sock bin/tendril devices --json | grep -o '"memory_bytes": *[0-9]*' | grep -o '[0-9]*$' | sort -n | tail -n 1)
	TENDRIL_SESSION_DEVICE=$((most / 2 + 1)) TENDRIL_WORKER_WAIT=200ms bin/tendril daemon >"$out/admission.log" 2>&1 &
	local of_its_own=$!
	for _ in $(seq 100); do
		bin/tendril devices --json 2>/dev/null | grep -q uuid && break
		sleep 0.2
	done
	mkfifo "$work/first"
	forwarded bin/gpu/session <"$work/first" >"$work/admitted" &
	local first=$!
	exec 7>"$work/first"
	echo open >&7
	for _ in $(seq 100); do
		[ -s "$work/admitted" ] && break
		sleep 0.1
	done
	echo open | forwarded bin/gpu/session >"$work/refused" 2>&1
	exec 7>&-
	wait "$first"
	cat "$work/refused"
	grep -q 'its 1 sessions take' "$work/refused" || rc=1
	echo open | forwarded bin/gpu/session || rc=1 # the first has ended
	if bin/tendril devices --json | grep -q '"in_place": true'; then echo "in place: no device memory to bound"; rc=0; fi
	kill -TERM "$of_its_own" && wait "$of_its_own"
	export TENDRIL_SOCKET=$work/tendril.sock TENDRIL_STATE_DIR=$work/state
	return $rc
}

step "daemon on $library" start_daemon
step "status" bin/tendril status
step "devices" bin/tendril devices
step "clinfo" same_info
step "the filter, native and forwarded" same_edges
step "call by call" same_calls
step "wrong calls" wrong_calls
step "objects of the store" objects
step "device quota" quota
step "sessions by memory" admission
case $library in *nvidia*) step "memory of GPUs" timeout 300 bin/gpu/memory -tendril bin/tendril ;; esac
case $library in *nvidia*) step "objects of a GPU on two nodes" timeout 500 tools/gpucheck/nodes.sh bin/tendril ;; esac
step "command buffers" forwarded bin/gpu/replay
step "figures" measure
step "rows" rows
step "demonstration" timeout 120 bin/gpu/demo -bin bin
step "status at the end" bin/tendril status
kill -TERM "$daemon" && wait "$daemon"
echo "daemon: exit $?"
tail -n 40 "$out/daemon.log"
rm -rf "$work"
echo "$failed steps failed"
exit "$failed"

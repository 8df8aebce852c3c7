#!/usr/bin/env bash
# Checks objects in a GPU's memory on two nodes: two daemons of this machine are one cluster. What is put on the GPU at
# the one is got at the other, a composite has members of both kinds, and the GPU is filled until objects make way; all
# bytes are compared. It builds nothing, and needs bin/tendril alone.
#
#     tools/gpucheck/nodes.sh [TENDRIL [DEVICE [BYTES [FILL-BYTES]]]]     e.g. bin/tendril cuda:0 268435456 4294967296
#
# FILL-BYTES is the size of the objects that fill the GPU; the files need twice that in TMPDIR. Each step prints what it
# took; the exit status is the number of checks that failed.
set -u
tendril=$(realpath "${1:-bin/tendril}") device=${2:-cuda:0} bytes=${3:-$((256 << 20))} fill=${4:-$((4 << 30))}
work=$(mktemp -d)
mkdir -p "$work/vendors" # no OpenCL driver: the daemons probe none
failed=0 pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait; rm -rf "$work"' EXIT

at() { # NODE VERB…
	local n=$work/$1
	shift
	TENDRIL_SOCKET=$n/s TENDRIL_STATE_DIR=$n/state TENDRIL_CREDENTIALS=$n/logins "$tendril" "$@"
}
node() { # NAME FLAGS…
	local name=$1
	shift
	mkdir -p "$work/$name/state"
	local n=$work/$name
	TENDRIL_NODE_NAME=$name TENDRIL_LISTEN=127.0.0.1:0 TENDRIL_SOCKET=$n/s TENDRIL_STATE_DIR=$n/state \
		"$tendril" daemon --vendors "$work/vendors" --capacity "${CAPACITY:-32GiB}" "$@" >"$n/log" 2>&1 &
	pids+=($!)
	for _ in $(seq 300); do # until the daemon serves
		at "$name" status >/dev/null 2>&1 && return
		sleep 0.1
	done
	echo "node $name does not come up:"; cat "$work/$name/log"; exit 1
}
check() { # WHAT COMMAND…: runs it, times it, counts a failure
	local what=$1 start
	shift
	start=$(date +%s%N)
	if "$@" >"$work/said" 2>&1; then word=ok; else word=FAILED failed=$((failed + 1)); fi
	printf '%-7s%-70s%8d ms\n' $word "$what" $((($(date +%s%N) - start) / 1000000))
	[ $word = ok ] || sed 's/^/       /' "$work/said"
}
has() { grep -q -- "$1" <(shift; "$@"); }                       # TEXT COMMAND…
number() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" | head -1; } # of JSON
away() { at a status --json | number away_objects; }
same() { at "$1" get "$2" -o "$work/got" --wait 30s && cmp "$work/got" "$3"; }

node a
node b --cuda-driver none
listen=$(at a status --json | sed -n 's/.*"listen": *"\([^"]*\)".*/\1/p' | head -1)
token=$(at a token create --role node --once | awk 'END { print $NF }')
check "two daemons are one cluster" at b cluster join "$listen" --token "$token"

head -c "$bytes" /dev/urandom >"$work/one"
head -c 1000000 /dev/urandom >"$work/host"
check "put on the GPU at a: $bytes bytes" at a put "$work/one" --name one --device "$device"
check "publish" at a publish one
check "get at b: the first time, from the GPU, over TLS" same b one "$work/one"
check "get at b: again, from b's copy" same b one "$work/one"
check "b says that it is a copy in host memory" has "copied from" at b stat one
check "a replica at b" at a replicate one --replicas 2
check "a composite of host and GPU memory" eval 'at a put "$work/host" --name host && at a compose mix cpu=host gpu=one'
check "its parts" has "gpu" at a stat mix
check "its part on the GPU" same a one "$work/one"
check "deleted everywhere" eval 'at a rm mix && at a rm host && at a rm one'

head -c "$fill" /dev/urandom >"$work/fill"
mark() { printf '%08d' "$1" | dd of="$work/fill" conv=notrunc status=none; }
count=0
put() { mark "$count" && at a put "$work/fill" --name "fill$count" --device "$device"; }
until [ "$(away)" ] && [ "$(away)" -ge 3 ] || [ $count -ge 200 ] || [ $failed -gt 0 ]; do
	check "put $count to fill the GPU: $fill bytes" put
	count=$((count + 1))
done
check "objects made way: $(away) of $count" test "$(away)" -ge 3
back() { mark "$1" && same a "fill$1" "$work/fill"; }
for i in 0 1 2 $((count - 1)); do
	check "object $i comes back with its bytes" back "$i"
done
check "one that is away comes to b from where it is" eval 'at a publish fill3 && mark 3 && same b fill3 "$work/fill"'
drop() { for i in $(seq 0 $((count - 1))); do at a rm "fill$i" || return 1; done; }
check "all deleted" drop
check "nothing is left on the GPU" eval '[ "$(at a ls --json | grep -c "\"id\"")" = 0 ]'
echo "$failed checks failed"
exit $failed

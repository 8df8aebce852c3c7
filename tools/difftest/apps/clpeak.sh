# clpeak: every figure that it measures is there; how large one is says nothing here.
. ./app.sh
needs clpeak
tests=(--kernel-latency --transfer-bandwidth)
[ -n "$SHORT" ] || tests+=(--global-bandwidth --compute-sp --compute-integer)
clpeak "${tests[@]}" | sed -nE 's/^ +([a-zA-Z0-9 ()-]+[a-zA-Z0-9)]) *: ([0-9.]+(e[+-]?[0-9]+)?|inf)( us)?$/\1/p' | awk '$0 !~ /frequency|units/ {n = ++seen[$0]; print $0 (n > 1 ? " #" n : "") ": measured"}'

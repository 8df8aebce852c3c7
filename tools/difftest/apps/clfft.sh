# clFFT's client: transforms of several shapes, which it checks itself.
. ./app.sh
needs clFFT-client
try() {
  clFFT-client "$@" >"$WORK/log" 2>&1
  echo "$*: $?, $(grep -ciE 'fail|error|mismatch' "$WORK/log") complaints"
}
try -x 256 -p 1
try -x 96 -y 32 -o
[ -n "$SHORT" ] || { try -x 32 -y 32 -z 32; try -x 1024 -b 8 --inv; try -x 128 --inLayout 5 --outLayout 3 -o; try -x 500 --inLayout 2 --outLayout 2; }

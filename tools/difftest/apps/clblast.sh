# CLBlast's own tests of a few BLAS routines, against the CPU's BLAS.
. ./app.sh
[ -z "$SHORT" ] || missing "the time for CLBlast, in the short choice,"
routines=(xswap xaxpy xdot xger)
for r in "${routines[@]}"; do
  needs "clblast_test_$r"
  "clblast_test_$r" 2>&1 | sed 's/\x1b\[[0-9;]*m//g' | awk -v r="$r" '
    /Starting tests for the/ {type = $6}
    /test\(s\) (passed|skipped|failed)/ {print r " " type " " $3 ": " $1}'
  echo "$r end: ${PIPESTATUS[0]}"
done

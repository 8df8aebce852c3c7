# ViennaCL, a C++ library of dense and sparse linear algebra: products and a solver, which the program checks itself.
. ./app.sh
[ -z "$SHORT" ] || missing "the time for ViennaCL, in the short choice,"
needs g++
[ -f /usr/include/viennacl/matrix.hpp ] || missing libviennacl-dev
g++ -O1 -w -o "$WORK/viennacl" viennacl.cpp -lOpenCL 2>"$WORK/log" || { cat "$WORK/log" >&2; exit 1; }
"$WORK/viennacl"
echo "viennacl end: $?"

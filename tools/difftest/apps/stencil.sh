# A stencil of three dimensions in steps, with a checksum of the field: on one queue, two queues, in two domains, in shared virtual memory.
. ./app.sh
needs cc
cc -O2 -o "$WORK/stencil" stencil.c -lOpenCL 2>"$WORK/log" || { cat "$WORK/log" >&2; exit 1; }
"$WORK/stencil" ${SHORT:+20}
echo "stencil end: $?"

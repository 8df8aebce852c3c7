# hashcat: a self-test of each mode before it starts, a short benchmark, and words that it must find.
. ./app.sh
[ -z "$SHORT" ] || missing "what hashcat takes to compile its kernels, in the short choice,"
needs hashcat
modes=(0 100 1400)
export HOME=$WORK XDG_DATA_HOME=$WORK XDG_CACHE_HOME=$WORK
for m in "${modes[@]}"; do
  speed=$(hashcat -b -m "$m" --runtime=3 --machine-readable 2>"$WORK/complaint" | grep -cE "^1:$m:.*:[1-9][0-9]*$")
  echo "mode $m: $speed device, $(wc -l <"$WORK/complaint") complaints"
done
printf '098f6bcd4621d373cade4e832627b4f6\n1f3870be274f6c49b3e31a0c6728957f\n' >"$WORK/hashes" # "test", and one longer than the mask
hashcat -m 0 -a 3 --potfile-disable --quiet -o "$WORK/found" "$WORK/hashes" '?l?l?l?l'
echo "words end: $?"
echo "words found: $(sort "$WORK/found" | tr '\n' ' ')"

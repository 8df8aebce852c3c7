# pyopencl's own tests, as Debian ships them beside its examples. Compiling makes them take minutes on a CPU.
. ./app.sh
tests=/usr/share/doc/python-pyopencl-doc/examples
[ -f $tests/test_wrapper.py ] || missing python-pyopencl-doc
/usr/bin/python3 -c 'import pyopencl, pytest, mako' 2>/dev/null || missing "python3-pyopencl, python3-pytest or python3-mako"
files=(test_enqueue_copy.py)
[ -n "$SHORT" ] || files+=(test_wrapper.py test_arrays_in_structs.py test_clmath.py)
[ -z "$ALL" ] || files+=(test_clrandom.py test_array.py test_algorithm.py)
# For those who look for a fault, also test_array.py::test_sum; PoCL compiles all of test_array, and of test_algorithm, for seven minutes each.
[ -z "${DIFFTEST_FILES:-}" ] || read -ra files <<<"$DIFFTEST_FILES"
cp $tests/test_*.py $tests/*.h $tests/*.spv "$WORK" && cd "$WORK" || exit 1
PYOPENCL_CTX=0 XDG_CACHE_HOME=$WORK /usr/bin/python3 -m pytest -q -p no:cacheprovider --junitxml=result.xml "${files[@]}" >"$WORK/log" 2>&1
echo "tests end: $?"
/usr/bin/python3 - <<'PY'
import re, xml.etree.ElementTree as tree
seen = {}
for case in tree.parse("result.xml").iter("testcase"):
    # A parameter is the device or the platform, and the platform's name stands in it.
    name = re.sub(r"<context factory for <.*?>>", "device", case.get("name"))
    name = case.get("classname") + "." + re.sub(r"<pyopencl.Platform .*?>", "platform", name)
    name = re.sub(r"[:\s]+", " ", name)
    seen[name] = seen.get(name, 0) + 1
    label = name if seen[name] == 1 else f"{name} #{seen[name]}"
    kinds = [c.tag for c in case if c.tag in ("failure", "error", "skipped")]
    print(f"{label}: {kinds[0] if kinds else 'passed'}")
PY

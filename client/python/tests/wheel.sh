#!/bin/bash
# Builds wheel and sdist from this tree without a network, installs the wheel into a virtual environment and runs the
# tests there, so that what is tested is what is shipped. Checks the types if mypy is installed.
# Arguments: the Python (with setuptools, wheel and, for all tests, NumPy), the directory that gets the packages.
set -euo pipefail
python=$1 out=$(mkdir -p "$2" && cd "$2" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -f "$out"/tendril-*.whl "$out"/tendril-*.tar.gz
# build HOOK DIR: what pip asks of the build backend, with that source, in DIR.
build() {
  (cd "$2" && "$python" -B -c "
import sys
sys.path.insert(0, '.')
import backend
getattr(backend, sys.argv[1])(sys.argv[2])" "$1" "$out" >"$work/log" 2>&1) || { cat "$work/log"; exit 1; }
}
files() { (cd "$here" && find . -name __pycache__ -prune -o -print | sort); }
files >"$work/before"
build build_sdist "$here"
files | diff "$work/before" - || { echo "the build leaves files in the tree"; exit 1; }
# The wheel is built from the sdist, which proves that the sdist is complete.
mkdir "$work/sdist"
tar -xzf "$out"/tendril-*.tar.gz -C "$work/sdist" --strip-components=1
build build_wheel "$work/sdist"
wheel=$(ls "$out"/tendril-*.whl)
# not grep -q: it ends at the first match, and the list is then written into a closed pipe
"$python" -m zipfile -l "$wheel" | grep LICENSE >/dev/null || { echo "the wheel has no licence"; exit 1; }

"$python" -m venv --system-site-packages --without-pip "$work/venv"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$python" -m zipfile -e "$wheel" "$site" # a pure wheel only has to be unpacked
cp -r "$here/tests" "$work/tests"
cd "$work"
"$work/venv/bin/python" - "$site" <<'CHECK'
import sys, tendril
from importlib import metadata
assert tendril.__file__.startswith(sys.argv[1]), tendril.__file__
assert metadata.version("tendril") == tendril.__version__, metadata.version("tendril")
CHECK
export PYTHON_PAGE="$here/../../docs/PYTHON.md"
export TENDRIL_CUDA_LIBRARY=$(dirname "$TENDRIL_BIN")/lib/libtendril_cuda.so.0
# The tests compile it: the CUDA driver for tests.
export CUDA_FAKE_SOURCE="$here/../../forwarding/cuda/fakecuda/testdata/fakecuda.c"
"$work/venv/bin/python" -m unittest discover -s tests -t .
if command -v mypy >/dev/null; then
  (cd "$here" && mypy --strict --cache-dir "$work/mypy" --python-version 3.9 tendril)
else
  echo "types are not checked: no mypy here"
fi
echo "packages: $(basename "$wheel"), $(cd "$out" && ls tendril-*.tar.gz)"

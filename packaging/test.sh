#!/bin/bash
# Tries bin/packages as an administrator would, in clean roots made by debootstrap: Debian 12 (packages, OpenCL, Python)
# and Debian 11, the oldest glibc that Debian's mirror has (packages and tarball). Each root is made once, in bin/roots;
# what a test changes goes to a layer above it that is thrown away. Root alone may do this. Arguments: suites.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "only root can try packages in a root of their own: run it with sudo"; exit 1; }
command -v debootstrap >/dev/null || { echo "debootstrap is missing (apt-get install debootstrap)"; exit 1; }
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }')}
arch=$(dpkg --print-architecture)
[ $# -gt 0 ] || set -- bookworm bullseye

# base SUITE: a directory with that Debian, and in 12 what programs of OpenCL and Python need.
base() {
  local dir=bin/roots/$1 extra=
  [ "$1" != bookworm ] || extra=python3-minimal,python3-numpy,clinfo,ocl-icd-libopencl1,pocl-opencl-icd,man-db,curl
  if [ ! -e "$dir.done" ]; then
    echo "making $dir" >&2
    rm -rf "$dir"
    mkdir -p bin/roots
    debootstrap --variant=minbase ${extra:+--include=$extra} "$1" "$dir" "$mirror" \
      >"$dir.log" 2>&1 || { tail -n 5 "$dir.log" >&2; exit 1; }
    touch "$dir.done"
  fi
  echo "$dir"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/newer"
# The same program once more, as the version that comes next.
staged=$PWD/bin/stage-$arch
version=$(basename "$(echo bin/packages/tendril_*_"$arch".deb)" "_$arch.deb")
export PACKAGE=${version#tendril_}+next ARCH=$arch PACKAGING=$PWD/packaging GLIBC=2.31
for name in tendril-client tendril; do
  (cd "$staged" && go tool -modfile="$PACKAGING/nfpm.mod" nfpm package -f "$PACKAGING/deb/$name.yaml" -p deb \
    -t "$work/newer/" >/dev/null)
done

for suite in "$@"; do
  dir=$(base "$suite")
  layer=$work/$suite
  mkdir -p "$layer/upper" "$layer/work" "$layer/tree"
  echo "== $suite"
  # A mount namespace and a process namespace of its own: all mounts and processes end with it.
  unshare --mount --pid --fork --kill-child bash -euc '
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/tree"
    mount -t proc proc "$2/tree/proc"
    mount --rbind /sys "$2/tree/sys"
    mount -t tmpfs -o mode=755 run "$2/tree/run"
    mkdir -p "$2/tree/packages/newer"
    cp bin/packages/*_"$4".deb bin/packages/*-"$4".tar.gz "$2/tree/packages/"
    cp "$3"/newer/*.deb "$2/tree/packages/newer/"
    cp packaging/test-in-root.sh packaging/systemctl-for-tests.sh docs/ADMIN.md "$2/tree/packages/"
    exec chroot "$2/tree" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 \
      DEBIAN_FRONTEND=noninteractive bash /packages/test-in-root.sh
  ' in-root "$dir" "$layer" "$work" "$arch"
done
echo "packages: installed, used, upgraded and purged in: $*"

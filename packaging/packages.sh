#!/bin/bash
# Builds bin/packages: tendril and tendril-client as .deb (nfpm, packaging/deb) and a tarball for other systems, for each
# architecture. They are linked against an old C library (sysroot.sh) where one can be had, else against this machine's,
# and say which they need. Arguments: the go command, the version, a tendril that runs here, architectures.
set -euo pipefail
go=$1 stamp=$2 speaker=$(realpath "$3")
shift 3
cd "$(dirname "$0")/.."
top=$PWD out=$top/bin/packages
export CGO_ENABLED=1 GOOS=linux
unset MAKEFLAGS VERSION # of the make that runs this: the C client's version is its own

# Debian's versions begin with a digit and sort: 1.2.3 of a release, else by the number of commits.
case $stamp in
  [0-9]*.[0-9]*) version=$stamp ;;
  *) version=0.1.0~git$(git rev-list --count HEAD 2>/dev/null || echo 0).$stamp ;;
esac
export PACKAGE=${version//-/+} ARCH GLIBC

# compiler ARCH: the C compiler, "" where there is none.
compiler() {
  local cc=gcc root=$top/bin/sysroot/$1 libs
  [ "$1" = "$(dpkg --print-architecture)" ] || case $1 in
    arm64) cc=aarch64-linux-gnu-gcc ;;
    amd64) cc=x86_64-linux-gnu-gcc ;;
  esac
  command -v "$cc" >/dev/null || return 0
  if bash packaging/sysroot.sh "$1" "$root" >bin/sysroot.log 2>&1; then
    libs=lib/$($cc -print-multiarch) # all is named, for a gcc for another architecture looks beside itself first
    cc="$cc --sysroot=$root -B$root/usr/$libs -L$root/usr/$libs -L$root/$libs"
    cc="$cc -isystem $root/usr/include/${libs#lib/} -isystem $root/usr/include"
  else
    echo "no older C library for $1 (bin/sysroot.log): linked against this machine's" >&2
  fi
  echo "$cc"
}

# needs DIR: the newest version of glibc that a file there asks for.
needs() {
  find "$1" -type f \( -name tendril -o -name '*.so*' \) -exec objdump -T {} + 2>/dev/null |
    grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | cut -d_ -f2
}

# stage PREFIX DIR: what make install installs, the Python client with it.
stage() {
  rm -rf "$2"
  bash packaging/install.sh "$built" "$2" "$1" "$speaker" >/dev/null
  find "$2" -name '*.1' -o -name '*.3' | xargs gzip -9n
}

deb() { # NAME; the packager runs here, so the compiler for ARCH is not its
  (cd "$staged" && CGO_ENABLED=0 "$go" tool -modfile="$top/packaging/nfpm.mod" nfpm package \
    -f "$top/packaging/deb/$1.yaml" -p deb -t "$out/$1_${PACKAGE}_$ARCH.deb")
}

mkdir -p "$out"
rm -f "$out"/*_*.deb "$out"/tendril-*.tar.gz
for ARCH in "$@"; do
  CC=$(compiler "$ARCH")
  if [ -z "$CC" ]; then
    echo "no C compiler for $ARCH here: no packages for it (make deps)" >&2
    continue
  fi
  echo "building for $ARCH"
  built=$top/bin/build-$ARCH staged=$top/bin/stage-$ARCH
  mkdir -p "$built"
  export CC
  GOARCH=$ARCH "$go" build -ldflags "-s -w -X main.version=$stamp" -o "$built/tendril" ./tools/tendril
  GOARCH=$ARCH "$go" build -buildmode=c-shared -ldflags "-s -w -X main.stamp=tendril-library-version=$stamp; $LIBRARY_FLAGS" \
    -o "$built/libtendril_opencl.so" ./forwarding/icd
  cp -r forwarding/icd/include "$built/"
  make --no-print-directory -s -C client/c OUT="$built" CC="$CC"
  GLIBC=$(needs "$built")

  stage /usr "$staged"
  cp -r packaging/deb "$staged/DEBIAN"
  site=$staged/usr/lib/python3/dist-packages
  mkdir -p "$site/tendril"
  cp client/python/tendril/*.py client/python/tendril/py.typed "$site/tendril/"
  bash packaging/python-info.sh client/python "$site"
  deb tendril-client
  deb tendril

  name=tendril-$PACKAGE-linux-$ARCH
  tree=$top/bin/$name
  stage /usr/local "$staged-local"
  rm -rf "$tree"
  mv "$staged-local/usr/local" "$tree"
  mkdir -p "$tree/python"
  cp -r "$site"/. "$tree/python/"
  sed "s|@GLIBC@|$GLIBC|" packaging/README.tarball >"$tree/README"
  tar -C "$top/bin" --owner=0 --group=0 -czf "$out/$name.tar.gz" "$name"
  rm -rf "$tree"
  echo "$ARCH: glibc $GLIBC or newer"
done
(cd "$out" && sha256sum ./*.deb ./*.tar.gz >SHA256SUMS)
ls -l "$out"

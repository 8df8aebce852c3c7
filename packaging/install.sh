#!/bin/bash
# Installs what `make build` built. Arguments: the build's directory, DESTDIR (may be empty), PREFIX; and, where the
# build is for another architecture, a tendril that runs here, which writes the manual and the completions.
# The driver is not enabled for the whole system: its .icd file lies where only `tendril run` and `tendril env` look. To enable it
# for every program, link it into /etc/OpenCL/vendors.
set -euo pipefail
bin=$1 prefix=$3 speaker=${4:-$1/tendril}
root=$2$prefix
case $prefix in /*) ;; *) echo "PREFIX must be an absolute path, not '$prefix'" >&2; exit 1 ;; esac
here=$(cd "$(dirname "$0")" && pwd)

install -D -m 755 "$bin/tendril" "$root/bin/tendril"
install -D -m 644 "$bin/libtendril_opencl.so" "$root/lib/tendril/libtendril_opencl.so"
mkdir -p "$root/lib/tendril/vendors"
sed "s|@LIBRARY@|$prefix/lib/tendril/libtendril_opencl.so|" "$here/tendril.icd.in" >"$root/lib/tendril/vendors/tendril.icd"
if [ -d "$bin/include" ]; then
  (cd "$bin/include" && find . -type f) | while read -r header; do
    install -D -m 644 "$bin/include/$header" "$root/include/$header"
  done
fi
version=$(basename "$(echo "$bin"/lib/libtendril.so.*.*.*)")
install -D -m 644 "$bin/lib/$version" "$root/lib/$version"
install -D -m 644 "$bin/lib/libtendril.a" "$root/lib/libtendril.a"
ln -sf "$version" "$root/lib/libtendril.so.0"
ln -sf libtendril.so.0 "$root/lib/libtendril.so"
allocator=libtendril_cuda.so.${version#libtendril.so.}
install -D -m 644 "$bin/lib/$allocator" "$root/lib/$allocator"
ln -sf "$allocator" "$root/lib/libtendril_cuda.so.0"
mkdir -p "$root/lib/pkgconfig"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|${version#libtendril.so.}|" "$here/../client/c/tendril.pc.in" >"$root/lib/pkgconfig/tendril.pc"
install -D -m 644 "$here/../client/c/man/tendril.3" "$root/share/man/man3/tendril.3"
mkdir -p "$root/share/man/man1"
"$speaker" man >"$root/share/man/man1/tendril.1"
for example in "$here"/../client/c/examples/*.c "$here"/../forwarding/icd/examples/*.c; do
  install -D -m 644 "$example" "$root/share/doc/tendril/examples/$(basename "$example")"
done
for kind in system user; do
  mkdir -p "$root/lib/systemd/$kind"
  sed "s|@BINDIR@|$prefix/bin|" "$here/systemd/$kind/tendril.service.in" >"$root/lib/systemd/$kind/tendril.service"
done
for file in "$here/tendril.toml.example" "$here/../LICENSE" "$here/../CHANGELOG.md"; do
  install -D -m 644 "$file" "$root/share/doc/tendril/$(basename "$file")"
done
completion() { # SHELL FILE
  mkdir -p "$(dirname "$root/share/$2")"
  "$speaker" completion "$1" >"$root/share/$2"
}
completion bash bash-completion/completions/tendril
completion zsh zsh/site-functions/_tendril
completion fish fish/vendor_completions.d/tendril.fish
echo "installed under $root; start a node with: systemctl --user start tendril (or: tendril daemon)"

#!/bin/bash
# Installs the Debian packages that building, testing and the demo need; quick when all are there. Where apt is missing or may not
# be used, it lists what is missing and fails. `deps.sh apps` installs the programs of make test-apps, where they can be had, `deps.sh packages` what make test-packages needs.
set -euo pipefail

# What the build needs, what the tests and the demo run on, and what only some tests use (they say so when they skip).
needed=(gcc libc6-dev make pkg-config ocl-icd-libopencl1 ocl-icd-opencl-dev opencl-headers pocl-opencl-icd clinfo clpeak
  python3 python3-numpy python3-pil python3-setuptools python3-venv python3-wheel)
useful=(chromium iperf3 strace mypy python3-pandas python3-pyopencl qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
if [ "${1:-}" = packages ]; then
  useful=(debootstrap gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
fi
if [ "${1:-}" = apps ]; then
  useful=(hashcat python3-pyopencl python3-pytest python3-mako python-pyopencl-doc clblast-tests clfft-client g++ libviennacl-dev)
fi

# missing PACKAGE…: those that are not installed, one a line.
missing() {
  local p
  for p in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
  done
}

# by_command: without dpkg, what can be told from commands and files.
by_command() {
  local c
  for c in gcc make clinfo clpeak python3; do
    command -v "$c" >/dev/null || echo "$c"
  done
  ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1 || echo "an OpenCL driver (PoCL serves)"
  python3 -c 'import numpy' 2>/dev/null || echo "numpy for python3"
  python3 -c 'import PIL' 2>/dev/null || echo "pillow for python3"
}

if ! command -v dpkg-query >/dev/null; then
  lack=$(by_command)
  [ -z "$lack" ] && exit 0
  printf 'Missing, by the names that Debian gives them where it has one; install them with your package manager:\n%s\n' "$lack" >&2
  exit 1
fi

mapfile -t lack < <(missing "${needed[@]}")
mapfile -t nice < <(missing "${useful[@]}")
if [ ${#lack[@]} -eq 0 ] && [ ${#nice[@]} -eq 0 ]; then
  echo "all packages are there"
  exit 0
fi

become=()
if [ "$(id -u)" -ne 0 ]; then
  if sudo -n true 2>/dev/null; then
    become=(sudo -n)
  else
    [ ${#nice[@]} -eq 0 ] || echo "Some tests would also use: ${nice[*]}"
    [ ${#lack[@]} -eq 0 ] && exit 0
    printf 'Packages are missing, and only root may install them:\n  apt-get install %s\n' "${lack[*]}" >&2
    exit 1
  fi
fi

apt=("${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q --no-install-recommends)
fetch() { "${apt[@]}" install "$@"; }
if [ ${#lack[@]} -gt 0 ]; then
  echo "installing: ${lack[*]}"
  fetch "${lack[@]}" || { "${apt[@]}" update && fetch "${lack[@]}"; } # the lists may be old or absent
fi
for p in "${nice[@]}"; do
  fetch "$p" >/dev/null 2>&1 || echo "$p cannot be had here; the tests that use it will skip and say so"
done

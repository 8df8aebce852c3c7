#!/bin/bash
# Makes a directory with the C library and headers of Debian 11 (glibc 2.31, the oldest that Debian's mirror has), so
# that what is linked against it runs there and on everything newer. apt fetches and checks the packages; nothing is
# installed. Arguments: the architecture (amd64, arm64), the directory.
set -euo pipefail
arch=$1 root=$2
[ ! -e "$root/done" ] || exit 0
# The mirror of this machine's Debian, unless MIRROR names another one.
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }')}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/parts" "$root"
: >"$work/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bullseye main" \
  >"$work/sources.list"
cat >"$work/apt.conf" <<CONF
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Sandbox::User "root";
Dir::State "$work/state";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "$work/parts";
Dir::Etc::parts "$work/parts";
CONF
export APT_CONFIG=$work/apt.conf
apt-get update -q
(cd "$work" && apt-get download -q libc6 libc6-dev linux-libc-dev libcrypt1 libcrypt-dev)
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$root"; done
# Absolute links would lead the linker to this machine's library.
find "$root" -type l -lname '/*' | while read -r link; do ln -sfn "$root$(readlink "$link")" "$link"; done
cp -r /usr/include/CL "$root/usr/include/" # headers alone: the drivers' loader is found at run time
touch "$root/done"

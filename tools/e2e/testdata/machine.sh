#!/bin/bash
# The first process of a machine of a sort, for the quick starts: it has a host name, the names of the others, and of its
# own what a root of its own would have: /run, /var/lib/tendril, /etc/tendril, root's home.
# Arguments: name, hosts file, directory for what it keeps.
set -euo pipefail
name=$1 hosts=$2 dir=$3
hostname "$name"
mkdir -p "$dir"/{run,etc,state,home} /etc/tendril /var/lib/tendril
mount --bind "$hosts" /etc/hosts
mount --bind "$dir/run" /run
mount --bind "$dir/etc" /etc/tendril
mount --bind "$dir/state" /var/lib/tendril
echo up
exec sleep infinity >/dev/null

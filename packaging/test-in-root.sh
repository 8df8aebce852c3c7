#!/bin/bash
# Runs in a clean root (test.sh), as root, without systemd: installs, uses, upgrades and purges the packages of /packages.
set -euo pipefail
cd /packages
step() { echo "   $*"; }
fail() { echo "FAILED: $*" >&2; tail -n 20 /tmp/node.log >&2; tendril status >&2; exit 1; }

# files: all that is there, but what dpkg, ldconfig and the test itself write.
files() {
  find / -xdev \( -path /proc -o -path /packages -o -path /tmp -o -path /home -o -path /var/log -o -path /var/cache \
    -o -path /var/lib/dpkg -o -path /etc/ld.so.cache \) -prune -o -print | sort
  find /run | sort
}
# eventually COMMAND…: until it succeeds, a minute long.
eventually() {
  for _ in $(seq 300); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  fail "not within a minute: $*"
}
node() { tendril status --json 2>/dev/null | sed -n 's/^ *"pid": *\([0-9]*\),.*/\1/p' | head -n 1; }
as() { runuser -u "$1" -- "${@:2}"; }

useradd -m alice
useradd -m bob
files >/tmp/before

step "the client alone: no daemon, and it says so"
dpkg -i tendril-client_*.deb >/tmp/dpkg.log
[ ! -e /lib/systemd/system/tendril.service ] || fail "the client brings a unit"
said=$(as alice tendril ls 2>&1) && fail "a client without a daemon lists objects"
[[ $said == *"no daemon answers"* ]] || fail "$said"
tendril version

step "the node"
dpkg -i tendril_*.deb >>/tmp/dpkg.log
for want in 'Delegate=yes' 'TasksMax=' 'ExecStart=/usr/bin/tendril daemon'; do
  grep -q "^$want" /lib/systemd/system/tendril.service || fail "the unit has no $want"
done
tendril daemon --capacity 64MiB >/tmp/node.log 2>&1 & # as the unit does: there is no systemd here
eventually tendril status
[ "$(stat -c %a /run/tendril/tendril.sock)" = 666 ] || fail "the socket is not for all"

step "a user puts, shares, and another gets"
head -c 3000000 /dev/urandom >/tmp/bytes
chmod 644 /tmp/bytes
as alice tendril put /tmp/bytes --name shared
as bob tendril get shared >/dev/null 2>&1 && fail "bob reads what is alice's"
as alice tendril share shared --to bob
id=$(as alice tendril stat shared --json | sed -n 's/^ *"id": *"\([0-9a-f]*\)".*/\1/p')
as bob tendril get "$id" -o - | cmp - /tmp/bytes

step "completion, manuals, headers"
for f in /usr/share/man/man1/tendril.1.gz /usr/share/man/man3/tendril.3.gz /usr/include/tendril.h \
  /usr/share/bash-completion/completions/tendril /usr/share/zsh/vendor-completions/_tendril \
  /usr/share/fish/vendor_completions.d/tendril.fish /usr/lib/pkgconfig/tendril.pc; do
  [ -s "$f" ] || fail "$f is missing"
done
ldconfig -p | grep -q 'libtendril.so.0' || fail "the linker does not find libtendril.so.0"
if command -v mandb >/dev/null; then
  man -l /usr/share/man/man1/tendril.1.gz 2>&1 | grep -q 'tendril put' || fail "no manual of tendril put"
fi

if command -v clinfo >/dev/null; then
  step "an unmodified OpenCL program"
  eventually as alice sh -c 'tendril devices --json | grep -q uuid'
  as alice tendril run -- clinfo -l | tee /tmp/clinfo
  grep -q Device /tmp/clinfo || fail "clinfo sees no device"
fi
holder=
if command -v python3 >/dev/null; then
  step "Python holds an object over the upgrade"
  cat >/tmp/hold.py <<'P'
import time, os, tendril
store = tendril.connect()
held = store.get("shared")
want = open("/tmp/bytes", "rb").read()
assert bytes(held.data) == want
open("/tmp/holds", "w").close()
while not os.path.exists("/tmp/upgraded"):
    time.sleep(0.1)
assert bytes(held.data) == want
assert bytes(store.get("shared").data) == want
P
  as alice python3 /tmp/hold.py &
  holder=$!
  eventually test -e /tmp/holds
fi

step "an upgrade in place: another process serves, the objects are there"
before=$(node)
dpkg -i newer/*.deb >>/tmp/dpkg.log
after=$(node)
[ -n "$after" ] && [ "$before" != "$after" ] || fail "node $before, after the upgrade $after"
touch /tmp/upgraded
[ -z "$holder" ] || wait "$holder"
as bob tendril get "$id" -o - | cmp - /tmp/bytes
as alice tendril get shared -o - | cmp - /tmp/bytes
[ -z "$holder" ] || as alice tendril run -- clinfo -l | cmp - /tmp/clinfo

step "purge: nothing is left"
dpkg --purge tendril >>/tmp/dpkg.log
[ ! -d "/proc/$after" ] || ! grep -q tendril "/proc/$after/comm" || fail "the node goes on"
dpkg --purge tendril-client >>/tmp/dpkg.log
files >/tmp/after
diff /tmp/before /tmp/after || fail "files are left, or gone"

step "the tarball, from where it was unpacked, and in /usr/local"
tar -xzf tendril-*.tar.gz -C /opt
cd /opt/tendril-*
export TENDRIL_SOCKET=/tmp/tarball/tendril.sock
bin/tendril daemon --state-dir /tmp/tarball/state --capacity 64MiB --listen none >/tmp/node.log 2>&1 &
node=$!
eventually bin/tendril status
bin/tendril put /tmp/bytes --name tarball
bin/tendril get tarball -o - | cmp - /tmp/bytes
if command -v clinfo >/dev/null; then
  eventually sh -c 'bin/tendril devices --json | grep -q uuid'
  bin/tendril run -- clinfo -l | grep -q Device || fail "clinfo sees no device"
fi
kill "$node"
wait "$node" || fail "the node ended with $?"
unset TENDRIL_SOCKET
if command -v curl >/dev/null; then
  step "docs/ADMIN.md, block by block"
  install -m 755 /packages/systemctl-for-tests.sh /usr/bin/systemctl # apt knows no other path
  mkdir -p /run/systemd/system
  useradd -m carol
  useradd -m dave
  cd /packages
  # A block is what stands between ```sh node and ```.
  block=
  while IFS= read -r line; do
    case $line in
      '```sh node') block=$'\n' ;;
      '```')
        [ -z "$block" ] || bash -euo pipefail -c "$block" >/tmp/block.log 2>&1 ||
          { cat /tmp/block.log >&2; fail "docs/ADMIN.md: $block"; }
        block=
        ;;
      *) [ -z "$block" ] || block+=$line$'\n' ;;
    esac
  done </packages/ADMIN.md
fi
step "$(ldd --version 2>&1 | head -n 1): all good"

#!/bin/bash
# What systemctl does with tendril.service, for a root without systemd: it reads the unit that is installed.
set -euo pipefail
unit=/lib/systemd/system/tendril.service
node() { tendril --socket /run/tendril/tendril.sock status --json 2>/dev/null | sed -n 's/^ *"pid": *\([0-9]*\),.*/\1/p' | head -n 1 || true; }
until_node() { # "" or "!": until it is there, or gone
  for _ in $(seq 300); do
    if [ "$1" = "!" ]; then [ -z "$(node)" ] && return; else [ -n "$(node)" ] && return; fi
    sleep 0.1
  done
  exit 1
}
verb= signal=TERM
for arg; do
  case $arg in
    --signal=*) signal=${arg#*=} ;;
    --now) [ "$verb" != disable ] || "$0" stop ;;
    -*) ;;
    tendril | tendril.service) ;;
    *) verb=$arg ;;
  esac
done
pid=$(node)
case $verb in
  start)
    [ -z "$pid" ] || exit 0
    setsid $(sed -n 's/^ExecStart=//p' $unit) >>/tmp/node.log 2>&1 </dev/null &
    until_node ""
    ;;
  stop)
    [ -z "$pid" ] || kill "$pid"
    until_node "!"
    ;;
  restart) "$0" stop && "$0" start ;;
  kill)
    kill "-$signal" "$pid"
    if [ "$signal" = USR2 ]; then
      for _ in $(seq 300); do
        now=$(node)
        [ -z "$now" ] || [ "$now" = "$pid" ] || exit 0
        sleep 0.1
      done
      exit 1
    fi
    ;;
  is-active)
    [ -n "$pid" ] && echo active
    ;;
  enable) touch /tmp/enabled ;;
  disable) rm -f /tmp/enabled ;;
  is-enabled) [ -e /tmp/enabled ] ;;
  daemon-reload) ;;
  *) echo "systemctl $*: not in this root" >&2 && exit 1 ;;
esac

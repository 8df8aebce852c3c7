#!/bin/sh
# Makes the node of this pod a member of the cluster of another one that the headless service names. It asks each of
# them in turn, and again, until this node has company. Environment:
#   TENDRIL_NODES   the service's name; its addresses are the nodes'
#   POD_IP          this pod's own address
#   TENDRIL_TOKENS  a file with a token of role node (tendril token create --role node); while there is none it waits
#   JOIN_PAUSE      seconds between two rounds, 10 where it is not set
set -u
others() { tendril cluster status --json | tr -d ' \n' | grep -o '"self":false' | wc -l; }
while :; do
  count=$(others) || count=0
  if [ "$count" -gt 0 ]; then
    echo "this node is in a cluster with $count others"
    exit 0
  fi
  if [ -s "$TENDRIL_TOKENS" ]; then
    for ip in $(getent ahostsv4 "$TENDRIL_NODES" | cut -d ' ' -f 1 | sort -u); do
      [ "$ip" = "$POD_IP" ] && continue
      # A node of another cluster than the token's refuses; so does this node where the token is its own.
      tendril cluster join "$ip:${TENDRIL_PORT:-7433}" <"$TENDRIL_TOKENS" && break
    done
  fi
  sleep "${JOIN_PAUSE:-10}"
done

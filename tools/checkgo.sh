#!/bin/bash
# Says which Go is here and which is wanted; fails when it is missing or too old.
# Arguments: the go command.
set -euo pipefail
go=$1
want=$(awk '$1 == "go" { print $2 }' go.mod)
how="Get it from https://go.dev/dl/ (unpack it under /usr/local and put /usr/local/go/bin into PATH); Debian 12's own package is too old."
if ! command -v "$go" >/dev/null; then
  echo "Go $want or newer is wanted and '$go' is not found. $how" >&2
  exit 1
fi
have=$(GOTOOLCHAIN=local "$go" env GOVERSION 2>/dev/null || true)
have=${have#go}
if [ -z "$have" ] || [ "$(printf '%s\n%s\n' "$want" "${have%%-*}" | sort -V | head -n 1)" != "$want" ]; then
  echo "Go $want or newer is wanted, this is ${have:-unknown}. $how" >&2
  exit 1
fi
echo "Go $have (wanted: $want or newer)"

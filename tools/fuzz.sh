#!/bin/bash
# Runs every fuzz target of the module, one after another. Arguments: the go command, the time for each.
set -euo pipefail
go=$1 each=$2
grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do
  sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r target; do
    echo "== $(dirname "$file") $target"
    "$go" test "$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$each"
  done
done

#!/bin/sh
# The library's files call each other in one direction only, as internal.h says. Arguments: its object files.
circle=$(nm -A "$@" | awk '
	{ file = $1; sub(/:.*/, "", file); sub(/.*\//, "", file); sub(/\.o$/, "", file) }
	$(NF - 1) ~ /^[TDBRV]$/ { home[$NF] = file }
	$(NF - 1) == "U" { uses[file, $NF] = file }
	END {
		for (pair in uses) {
			split(pair, p, SUBSEP)
			if (p[2] in home && home[p[2]] != p[1]) {
				print p[1], home[p[2]]
				n++
			}
		}
		if (n < 40) print "too-few-calls too-few-calls-seen\ntoo-few-calls-seen too-few-calls"
	}' | tsort 2>&1 >/dev/null | head -n 12)
[ -z "$circle" ] || { echo "files that call each other: $circle"; exit 1; }

#!/bin/sh
# tendril-client, after it was installed.
set -e
[ "$1" != configure ] || ldconfig

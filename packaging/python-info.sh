#!/bin/bash
# Writes the metadata of the Python client, so that pip and importlib.metadata know a copy of it that was not installed
# by pip. Arguments: the client's directory, the directory that gets tendril-VERSION.dist-info.
set -euo pipefail
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$1/pyproject.toml")
info=$2/tendril-$version.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: tendril\nVersion: %s\nSummary: %s\nLicense: Apache-2.0\nRequires-Python: >=3.9\n' \
  "$version" "$(sed -n 's/^description = "\(.*\)"/\1/p' "$1/pyproject.toml")" >"$info/METADATA"
echo debian >"$info/INSTALLER"

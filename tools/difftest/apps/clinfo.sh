# clinfo: all that a device and a platform say of themselves.
. ./app.sh
needs clinfo
# Sections have the platform's suffix as their names, which differs; the null platform's behaviour is said in words.
clinfo --raw | sed -E 's/^\[[A-Z]+\//[P\//; s/\[[A-Z]+\]$/[P]/' | awk 'NF && $0 !~ /^#/ {
  label = $1; if ($1 ~ /^\[/) { label = $1 " " $2; $2 = "" } $1 = ""; sub(/^ +/, ""); gsub(/ +/, " ")
  if (label ~ /GLOBAL_MEM_SIZE$/) $0 = "some" # some machines have more from one minute to the next
  n = ++seen[label]; print label (n > 1 ? " #" n : "") ": " $0 }'

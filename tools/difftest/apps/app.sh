# What the scripts here share. Each runs a program that was never told of Tendril and says what it saw in lines "label: result", with labels
# that occur once and nothing that differs from run to run. SHORT and ALL choose how much. WORK is an empty directory of the script's own.
SHORT=${DIFFTEST_SHORT:-} ALL=${DIFFTEST_ALL:-} WORK=${DIFFTEST_WORK:?the runner makes it}
missing() { echo "$* is not there" >&2; exit 77; }
needs() { command -v "$1" >/dev/null || missing "$1"; }

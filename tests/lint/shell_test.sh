#!/usr/bin/env bash
# Every shell script passes shellcheck.
#   shell_test.sh SOURCE_DIR
set -euo pipefail
cd "$1"
if ! command -v shellcheck > /dev/null; then
  echo "skipped: shellcheck is not installed"
  exit 77
fi
folders=()
for folder in scripts slurm tests perf; do [ ! -d "$folder" ] || folders+=("$folder"); done
find "${folders[@]}" \( -name '*.sh' -o -name '*.sbatch' \) -print0 |
  xargs -0 shellcheck --external-sources --source-path=SCRIPTDIR .ci/run

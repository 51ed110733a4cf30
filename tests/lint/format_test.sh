#!/usr/bin/env bash
# Every C++ and CUDA source is laid out as clang-format does it.
#   format_test.sh SOURCE_DIR
set -euo pipefail
cd "$1"
if ! command -v clang-format > /dev/null; then
  echo "skipped: clang-format is not installed"
  exit 77
fi
folders=()
for folder in include src kernels tests perf; do [ ! -d "$folder" ] || folders+=("$folder"); done
find "${folders[@]}" \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 -n 20 clang-format --dry-run -Werror

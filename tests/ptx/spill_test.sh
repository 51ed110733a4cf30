#!/usr/bin/env bash
# The options of the kernels' library make nvcc refuse a kernel that spills registers, and only that.
#
#   spill_test.sh NVCC OPTIONS...
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$(dirname "$0")" || exit

# compile NAME MORE_OPTIONS...: the status of nvcc; what it says goes to NAME.log
compile() {
  "${command[@]}" "${@:2}" -arch=sm_80 -c spilling.cu -o "$work/$1.o" > "$work/$1.log" 2>&1
}
command=("$@" -std=c++20 -O3)

if ! compile enough; then
  echo "the kernel with enough registers is refused:"
  cat "$work/enough.log"
  exit 1
fi
if compile spilling -maxrregcount=32; then
  echo "a kernel that spills is accepted:"
  cat "$work/spilling.log"
  exit 1
fi
if ! grep -qi spill "$work/spilling.log"; then
  echo "a kernel that spills is refused for another reason:"
  cat "$work/spilling.log"
  exit 1
fi
grep -i spill "$work/spilling.log"

#!/usr/bin/env bash
# A compiler launcher: runs nvcc and keeps the PTX that it makes on the way and what ptxas says.
#
#   keep_ptx.sh FOLDER COMMAND...     leaves FOLDER/NAME.compute_NN.ptx and FOLDER/NAME.log for NAME.cu
set -uo pipefail
folder=$1
shift
name=''
for argument; do
  case $argument in *.cu) name=$(basename "$argument" .cu) ;; esac
done
if [ -z "$name" ]; then exec "$@"; fi

work=$(mktemp -d "$folder/$name.XXXXXX") || exit
trap 'rm -rf "$work"' EXIT
"$@" --keep --keep-dir "$work" > "$work/log" 2>&1
status=$?
cat "$work/log"
[ "$status" = 0 ] || exit "$status"
mv "$work/log" "$folder/$name.log"
for file in "$work"/*.ptx; do
  architecture=$(grep -om1 'sm_[0-9]*' "$file")
  mv "$file" "$folder/$name.${architecture/sm/compute}.ptx"
done

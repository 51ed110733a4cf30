#!/usr/bin/env bash
# A folder of about 1 GB of random parameters from the page cache into memory, beside reading its files once in the same run:
# into new memory, as loading must, and into the same 8 MiB again and again. Medians. fp32 files are copied, bf16 files become
# twice as many bytes.
#
#   perf/load_folder.sh [--rounds N] [--threads N] [--bound X] [DTYPE ...]
#
# DTYPE: fp32, bf16; without any: both. With --bound it fails where loading fp32 takes more than X times as long as reading into
# new memory. BENCHMARK names the program (build/release/perf/load_folder_benchmark); folders are made in $TMPDIR.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=5 threads=$(nproc) bound=
dtypes=()
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=$2 && shift 2 ;;
    --threads) threads=$2 && shift 2 ;;
    --bound) bound=$2 && shift 2 ;;
    *) dtypes+=("$1") && shift ;;
  esac
done
[ ${#dtypes[@]} -gt 0 ] || dtypes=(fp32 bf16)
benchmark=$(realpath "${BENCHMARK:-build/release/perf/load_folder_benchmark}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for dtype in "${dtypes[@]}"; do
  "$benchmark" "$work/$dtype" "$rounds" "$threads" "$dtype" > "$work/result"
  rm -r "${work:?}/$dtype"
  python3 - "$work/result" "$dtype" "$bound" << 'PY'
import json, statistics, sys
found, dtype, bound = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
times = {name: statistics.median(found[name]) for name in ("load_s", "read_and_keep_s", "read_s")}
ratio = times["load_s"] / times["read_and_keep_s"]
print(f"{dtype}: {found['bytes'] / 1e9:.2f} GB, {found['threads']} threads: loaded in {times['load_s']:.3f} s, "
      f"{ratio:.2f} times reading into new memory ({times['read_and_keep_s']:.3f} s), "
      f"{times['load_s'] / times['read_s']:.2f} times reading into the same 8 MiB ({times['read_s']:.3f} s)")
if bound and dtype == "fp32" and ratio > float(bound):
    sys.exit(f"load_folder.sh: loading takes more than {bound} times as long as reading")
PY
done

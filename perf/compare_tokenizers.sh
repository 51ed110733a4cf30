#!/usr/bin/env bash
# cartan's tokenizers beside tiktoken and Hugging Face's library, one thread each, on the same text in the same run: 20 MB of
# English and code found on this machine, in CPU time. The ids must be the same. Then `cartan tokenize` with more and more threads.
#
#   PYTHON=python3 perf/compare_tokenizers.sh [--rounds N] [TOKENIZER ...]
#
# TOKENIZER is a tokenizer.json or the folder that holds it, with one Split pattern as Llama 3 and Qwen 3 have; without any:
# Llama 3's and Qwen 3's in ../shared/tokenizers. PYTHON must have tiktoken; tokenizers, if it has that, is measured as well.
# CARTAN names the program (build/release/src/cli/cartan), BENCHMARK the benchmark (build/release/perf/tokenizer_benchmark).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=3
tokenizers=()
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=$2 && shift 2 ;;
    *) tokenizers+=("$1") && shift ;;
  esac
done
benchmark=$(realpath "${BENCHMARK:-build/release/perf/tokenizer_benchmark}")
cartan=$(realpath "${CARTAN:-build/release/src/cli/cartan}")
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ ${#tokenizers[@]} -eq 0 ]; then
  for name in llama3 qwen3; do
    mkdir "$work/$name"
    gzip -dc "../shared/tokenizers/$name.tokenizer.json.gz" > "$work/$name/tokenizer.json"
    tokenizers+=("$work/$name")
  done
fi

"$python" perf/peers/tokenizer_text.py "$work/text" 10000000
for tokenizer in "${tokenizers[@]}"; do
  json=$tokenizer
  [ ! -d "$json" ] || json=$json/tokenizer.json
  : > "$work/results"
  for ((round = 0; round < rounds; round++)); do
    "$benchmark" "$json" "$work/text" 3 | sed 's/^/cartan /' >> "$work/results"
    "$python" perf/peers/tokenizer_encode.py "$json" "$work/text" 3 >> "$work/results"
  done
  "$python" - "$work/results" "$(basename "$tokenizer")" << 'PY'
import json, statistics, sys
rows = {}
for line in open(sys.argv[1]):
    name, text = line.split(" ", 1)
    rows.setdefault(name, []).append(json.loads(text))
speed = {name: statistics.median(r["bytes"] / s / 1e6 for r in runs for s in r["seconds"]) for name, runs in rows.items()}
ids = {(r["ids"], r["checksum"]) for runs in rows.values() for r in runs}
for name, value in speed.items():
    ratio = "" if name == "cartan" else f", cartan is {speed['cartan'] / value:.2f} times as fast"
    print(f"{sys.argv[2]:8} {name:11} {value:6.1f} MB/s{ratio}")
if len(ids) != 1:
    sys.exit(f"{sys.argv[2]}: the ids differ (number and checksum): {sorted(ids)}")
PY
done

# The same text eight times, as files of one document each.
for i in 1 2 3 4 5 6 7 8; do cp "$work/text" "$work/part$i.txt"; done
cpus=$(nproc)
for ((threads = 1; threads <= cpus; threads *= 2)); do
  begin=$(date +%s%N)
  "$cartan" tokenize --input "$work"/part*.txt --output "$work/out" --tokenizer "${tokenizers[0]}" --threads "$threads" > "$work/log"
  end=$(date +%s%N)
  sha=$(cat "$work/out.bin" "$work/out.idx" | sha256sum | cut -c 1-16)
  echo "cartan tokenize --threads $threads: $((8 * $(stat -c %s "$work/text") * 1000 / (end - begin))) MB/s with loading and writing, files $sha"
done

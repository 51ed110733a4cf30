#!/usr/bin/env bash
# cartan beside PyTorch on the same shapes: both train in turn with the same threads and tokens, and the medians of their step
# times give the ratios. Peak memory is that of the whole process, as the system accounts it.
#
#   PYTHON=python3 perf/compare_torch.sh [--rounds N] [--threads N] [--modes "eager compile"] [SHAPE:DTYPE ...]
#
# Shapes: 10m, 10m-long (sequence 8192), smollm2-135m; dtypes: fp32, bf16. Without any: all six. PYTHON must have torch and
# transformers. CARTAN names the program (build/release/src/cli/cartan).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=3 threads=2 modes=eager
cases=()
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=$2 && shift 2 ;;
    --threads) threads=$2 && shift 2 ;;
    --modes) modes=$2 && shift 2 ;;
    *) cases+=("$1") && shift ;;
  esac
done
[ ${#cases[@]} -gt 0 ] || cases=({10m,10m-long,smollm2-135m}:{fp32,bf16})
cartan=$(realpath "${CARTAN:-build/release/src/cli/cartan}")
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One long document, so that attention sees whole sequences, as PyTorch's does.
for _ in 1 2 3 4; do find src include tests docs -type f \( -name '*.?pp' -o -name '*.md' \) -print0 | sort -z | xargs -0 cat; done > "$work/text"
"$cartan" tokenize --input "$work/text" --output "$work/data" > "$work/log" 2>&1

shape_options() {
  case $1 in
    10m) echo "--model.preset 10m --seq 256 --batch.global 8 --batch.micro 8" ;;
    10m-long) echo "--model.preset 10m --seq 8192 --batch.global 1 --batch.micro 1" ;;
    smollm2-135m) echo "--model.preset smollm2-135m --seq 512 --batch.global 2 --batch.micro 2 --recompute.policy mlp" ;;
    *) echo "compare_torch.sh: unknown shape '$1'" >&2 && exit 64 ;;
  esac
}
steps_of() { [ "$1" = 10m ] && echo 10 || echo 4; }

run_cartan() { # SHAPE DTYPE -> a JSON line
  rm -rf "$work/run"
  # shellcheck disable=SC2046
  "$python" - "$work/run/metrics.jsonl" "$cartan" train $(shape_options "$1") --precision.compute "$2" \
    --run.steps "$(steps_of "$1")" --run.threads "$threads" --data.train "$work/data" --run.dir "$work/run" --optim.clip 0 \
    --optim.lr 1e-3 --schedule.kind constant --checkpoint.every 0 --run.progress never << 'PY'
import json, os, resource, statistics, subprocess, sys
metrics, command = sys.argv[1], sys.argv[2:]
done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
if done.returncode:
    sys.exit(done.stderr)
rate = next(l.split("matrix products ")[1].split()[0] for l in done.stderr.splitlines() if "matrix products" in l)
steps = [json.loads(l) for l in open(metrics)][1:]
tokens = steps[0]["tokens_per_s"] * steps[0]["step_s"]
print(json.dumps({"step_s": statistics.median(s["step_s"] for s in steps), "tokens": tokens, "mfu": statistics.median(s["mfu"] for s in steps),
                  "rate": float(rate), "peak": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}))
PY
}

run_torch() { # SHAPE DTYPE MODE -> a JSON line
  local dtype=$2
  [ "$dtype" != bf16 ] || dtype=bf16-autocast
  "$python" perf/peers/torch_step.py --shape "$1" --dtype "$dtype" --threads "$threads" --warmup 1 --steps "$(($(steps_of "$1") - 1))" \
    --mode "$3" 2> "$work/torch.log" | tail -n 1
}

for case in "${cases[@]}"; do
  shape=${case%%:*} dtype=${case##*:}
  : > "$work/results"
  for ((round = 0; round < rounds; round++)); do
    echo "cartan $(run_cartan "$shape" "$dtype")" >> "$work/results"
    for mode in $modes; do echo "$mode $(run_torch "$shape" "$dtype" "$mode")" >> "$work/results"; done
  done
  "$python" - "$work/results" "$shape" "$dtype" << 'PY'
import json, statistics, sys
rows = {}
for line in open(sys.argv[1]):
    name, text = line.split(" ", 1)
    rows.setdefault(name, []).append(json.loads(text))
ours = rows.pop("cartan")
speed = statistics.median(r["tokens"] / r["step_s"] for r in ours)
peak = max(r["peak"] for r in ours)
share = statistics.median(r["mfu"] for r in ours)
print(f"{sys.argv[2]:13} {sys.argv[3]:5} cartan {speed:8.1f} tokens/s, {100 * share:.0f} % of {ours[0]['rate']:.0f} GFLOP/s, {peak / 2**20:.0f} MiB")
for mode, runs in rows.items():
    theirs = statistics.median(r["tokens_per_s"] for r in runs)
    memory = max(r["peak_rss_bytes"] for r in runs)
    print(f"{'':19} torch {mode:8} {theirs:8.1f} tokens/s, {memory / 2**20:.0f} MiB: speed ratio {speed / theirs:.2f}, memory ratio {peak / memory:.2f}")
PY
done

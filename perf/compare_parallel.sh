#!/usr/bin/env bash
# cartan on two ranks, one mode after the other, beside PyTorch's DistributedDataParallel (DDP) and fully_shard (FSDP2) on gloo with two
# processes: the same shape, global batch and type of numbers, one thread a rank. The programs train in turn, round after round. A
# result is the median of the rounds' median steps; beside it the fastest step of all, which foreign load disturbs least. Memory is
# the largest process as the system accounts it. PyTorch computes the short model of peers/torch_model.py, which is faster than that of
# transformers.
#
#   PYTHON=python3 perf/compare_parallel.sh [--rounds N] [--threads N] [--modes "dp zero1 zero2 zero3 tp pp cp"] [--torch "ddp fsdp2"]
#                                           [--quiet SHARE] [--json FILE] [SHAPE:DTYPE ...]
#
# Shapes: 10m (8 sequences of 256 tokens), 10m-2k (4 of 2048), smollm2-135m (8 of 256); dtypes: fp32, bf16. Without any: all six.
# A run during which other programs used more than SHARE of the CPUs (0.1) does not count, unless a program has none that is quieter.
# PYTHON must have torch. CARTAN names the program (build/release/src/cli/cartan), MPIRUN the launcher with its flags.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=3 threads=1 modes="dp zero1 zero2 zero3 tp pp cp" strategies="ddp fsdp2" quiet=0.1 json=
cases=()
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=$2 && shift 2 ;;
    --threads) threads=$2 && shift 2 ;;
    --modes) modes=$2 && shift 2 ;;
    --torch) strategies=$2 && shift 2 ;;
    --quiet) quiet=$2 && shift 2 ;;
    --json) json=$(realpath "$2") && shift 2 ;;
    *) cases+=("$1") && shift ;;
  esac
done
[ ${#cases[@]} -gt 0 ] || cases=({10m,10m-2k,smollm2-135m}:{fp32,bf16})
cartan=$(realpath "${CARTAN:-build/release/src/cli/cartan}")
python=${PYTHON:-python3}
read -r -a mpirun <<< "${MPIRUN:-mpirun}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One long document, so that attention sees whole sequences, as PyTorch's does.
for _ in 1 2 3 4; do find src include tests docs -type f \( -name '*.?pp' -o -name '*.md' \) -print0 | sort -z | xargs -0 cat; done > "$work/text"
"$cartan" tokenize --input "$work/text" --output "$work/data" > "$work/log" 2>&1

set_shape() { # SHAPE -> preset, seq, batch, steps, modes that it cannot have
  impossible=
  case $1 in
    10m) preset=10m seq=256 batch=8 steps=8 ;;
    10m-2k) preset=10m seq=2048 batch=4 steps=4 ;;
    smollm2-135m) preset=smollm2-135m seq=256 batch=8 steps=2 impossible=tp ;; # 9 heads
    *) echo "compare_parallel.sh: unknown shape '$1'" >&2 && exit 64 ;;
  esac
}

mode_options() {
  case $1 in
    dp) ;;
    zero[123]) echo "--zero ${1#zero}" ;;
    tp | cp) echo "--$1 2" ;;
    pp) echo "--pp 2 --pipeline.schedule zero-bubble --batch.micro 1" ;;
    *) echo "compare_parallel.sh: unknown mode '$1'" >&2 && exit 64 ;;
  esac
}

measure() { # NAME STEPS METRICS COMMAND...: a JSON line into results; METRICS is cartan's file, or - where stdout has the numbers
  "$python" - "$@" >> "$work/results" << 'PY'
import json, os, resource, statistics, subprocess, sys, time

name, steps, metrics, command = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]


def used():  # seconds of CPU: of the whole machine, of this program's children
    ticks = [int(t) for t in open("/proc/stat").readline().split()[1:9]]
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"), children.ru_utime + children.ru_stime


begin, (machine, _) = time.time(), used()
done = subprocess.run(command, capture_output=True, text=True)
if done.returncode:
    sys.exit(done.stdout + done.stderr)
seconds, (machine_end, own) = time.time() - begin, used()
if metrics == "-":
    answer = json.loads(done.stdout.splitlines()[-1])
    step, best, peak = answer["step_s"], answer["step_s_min"], answer["peak_rss_bytes"]
    tokens = answer["tokens_per_s"] * step
else:
    rows = [json.loads(line) for line in open(metrics)][-steps:]
    step, best = statistics.median(row["step_s"] for row in rows), min(row["step_s"] for row in rows)
    tokens = rows[0]["tokens_per_s"] * rows[0]["step_s"]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
others = (machine_end - machine - own) / (seconds * os.cpu_count())
print(json.dumps({"name": name, "tokens": tokens, "step_s": step, "best_s": best, "peak_rss_bytes": peak, "others": others}))
PY
}

run_cartan() { # MODE DTYPE
  rm -rf "$work/run"
  # shellcheck disable=SC2046
  measure "$1" "$steps" "$work/run/metrics.jsonl" "${mpirun[@]}" -n 2 "$cartan" train --model.preset "$preset" --seq "$seq" --batch.global "$batch" \
    $(mode_options "$1") --precision.compute "$2" --run.steps $((steps + 1)) --run.threads "$threads" --data.train "$work/data" --run.dir "$work/run" \
    --optim.clip 0 --optim.lr 1e-3 --schedule.kind constant --checkpoint.every 0 --run.progress never
}

run_torch() { # STRATEGY DTYPE
  local dtype=$2
  [ "$dtype" != bf16 ] || dtype=bf16-autocast
  measure "$1" "$steps" - "$python" perf/peers/torch_ddp.py --procs 2 --threads "$threads" --strategy "$1" --impl plain --shape "$preset" \
    --seq "$seq" --global-batch "$batch" --dtype "$dtype" --warmup 1 --steps "$steps"
}

[ -z "$json" ] || : > "$json"
for case in "${cases[@]}"; do
  shape=${case%%:*} dtype=${case##*:}
  set_shape "$shape"
  : > "$work/results"
  for ((round = 0; round < rounds; round++)); do
    for strategy in $strategies; do run_torch "$strategy" "$dtype"; done
    for mode in $modes; do [ "$mode" = "$impossible" ] || run_cartan "$mode" "$dtype"; done
  done
  "$python" - "$work/results" "$shape" "$dtype" "$strategies" "$quiet" "$json" << 'PY'
import json, statistics, sys

results, shape, dtype, strategies, quiet, path = sys.argv[1:]
strategies = strategies.split()
runs = {}
for line in open(results):
    run = json.loads(line)
    runs.setdefault(run["name"], []).append(run)
rows = []
for name, mine in runs.items():
    counted = [r for r in mine if r["others"] <= float(quiet)] or [min(mine, key=lambda r: r["others"])]
    step, best = statistics.median(r["step_s"] for r in counted), min(r["best_s"] for r in mine)
    rows.append({"shape": shape, "dtype": dtype, "program": "torch" if name in strategies else "cartan", "mode": name,
                 "step_s": step, "tokens_per_s": mine[0]["tokens"] / step, "best_tokens_per_s": mine[0]["tokens"] / best,
                 "peak_rss_bytes": max(r["peak_rss_bytes"] for r in mine), "rounds": len(counted),
                 "others": max(r["others"] for r in counted)})
ratios = "".join(f" {'/ ' + s:>8}" for s in strategies)
print(f"{shape + ' ' + dtype:20} {'tokens/s':>9}{ratios} {'best step':>9}{ratios} {'MiB':>6} {'rounds':>6} {'others':>6}")
for row in rows:
    line = f"{row['program'] + ' ' + row['mode']:20}"
    for key in ("tokens_per_s", "best_tokens_per_s"):
        row[key + "_ratio"] = {r["mode"]: row[key] / r[key] for r in rows if r["mode"] in strategies}
        line += f" {row[key]:9.0f}" + "".join(f" {ratio:8.2f}" for ratio in row[key + "_ratio"].values())
    print(line + f" {row['peak_rss_bytes'] / 2**20:6.0f} {row['rounds']:6} {100 * row['others']:4.0f} %")
if path:
    with open(path, "a") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
PY
done

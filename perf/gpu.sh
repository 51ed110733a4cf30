#!/usr/bin/env bash
# What only a machine with a GPU can show, in one JSON file: the tests of the cuda device on the GPU, its kernels beside the limits
# of the GPU, two short trainings, and compute-sanitizer over some of the tests.
#
#   perf/gpu.sh [--build DIR] [--out FILE.json] [--minutes N] [--tests PATTERN]
#
#   --build    a build for this GPU (build/gpu); one that is complete is taken as it is, also without nvcc; else it is made, or finished
#   --out      where the results go (gpu.json)
#   --minutes  for all of it (8); what has no time left is recorded as skipped
#   --tests    only the tests whose name matches (all)
#
# Exit code: 0 all is well; 1 something failed, and the file says what; 71 something is missing, one sentence says what; 75 the time was
# over while it was built, start again to go on. With CARTAN_GPU_EMULATED=1 and a build of the usual tests it tries itself out: the
# device is emulated, and tiny models train on the CPU.
set -euo pipefail
started=$SECONDS
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$here/build/gpu out=gpu.json minutes=8 tests=.
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=${2:?a folder} && shift 2 ;;
    --out) out=${2:?a file} && shift 2 ;;
    --minutes) minutes=${2:?a number} && shift 2 ;;
    --tests) tests=${2:?a pattern} && shift 2 ;;
    *) echo "gpu.sh: unknown option '$1'; there are --build, --out, --minutes and --tests" >&2 && exit 64 ;;
  esac
done
[[ $minutes =~ ^[0-9]+$ ]] || { echo "gpu.sh: --minutes takes a whole number, not '$minutes'" >&2 && exit 64; }
emulated=${CARTAN_GPU_EMULATED:-}
deadline=$((started + minutes * 60))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work"/{tests,sanitizer,training}

missing() {
  echo "gpu.sh: $*" >&2
  exit 71
}
say() { printf '== %s (%d s)\n' "$*" $((SECONDS - started)) >&2; }

# begin NAME SECONDS: a part of the whole, which sees in `until` when its time is over and sets `state`; false if no time is left
begin() {
  part=$1 begun=$SECONDS state="skipped: no time was left"
  until=$((SECONDS + $2 < deadline ? SECONDS + $2 : deadline))
  say "$part"
  [ $((until - begun)) -ge 3 ]
}
finish() { printf '%s\t%d\t%s\n' "$part" $((SECONDS - begun)) "$state" >> "$work/parts.tsv"; }
# limited MOST COMMAND...: with what is left of the part's time, or MOST seconds; 124 where that was too short
limited() {
  local allowed=$((until - SECONDS < $1 ? until - SECONDS : $1))
  shift
  [ "$allowed" -gt 0 ] || return 124
  timeout --kill-after=5 "$allowed" "$@" < /dev/null
}

# --- the machine ---

command -v python3 > /dev/null || missing "there is no python3 on PATH, which writes the results"
command -v nvidia-smi > /dev/null || missing "there is no NVIDIA driver here: nvidia-smi is not on PATH"
facts=name,driver_version,compute_cap,memory.total,clocks.max.sm,clocks.max.memory,clocks.sm,clocks.memory,power.limit,temperature.gpu
echo "$facts" > "$work/gpus.csv"
nvidia-smi --query-gpu="$facts" --format=csv,noheader,nounits >> "$work/gpus.csv" 2> "$work/smi.log" ||
  missing "the NVIDIA driver does not answer: $({ tail -n +2 "$work/gpus.csv" && cat "$work/smi.log"; } | tail -n 1)"
IFS=', ' read -r capability memory_mib < <(awk -F', *' 'NR == 2 { print $3 ", " $4 }' "$work/gpus.csv")
[[ $capability =~ ^[0-9]+\.[0-9]+$ ]] || missing "no GPU is visible: nvidia-smi lists none"
nvcc=$(command -v nvcc || command -v "${CUDAToolkit_ROOT:-/usr/local/cuda}/bin/nvcc" || true)
[ -z "$nvcc" ] || "$nvcc" --version | sed -nE 's/.*release ([0-9.]+), V([0-9.]+).*/\2/p' > "$work/nvcc"
[ -z "$emulated" ] || touch "$work/emulated"
git -C "$here" rev-parse HEAD > "$work/commit" 2> /dev/null || true

# --- the build ---

cartan=$build/src/cli/cartan benchmark=$build/perf/gpu_benchmark
[ -z "$emulated" ] || benchmark=$build/tests/perf/gpu_benchmark_emulated
is_complete() {
  local program
  for program in "$cartan" "$benchmark"; do [ -x "$program" ] || return 1; done
  [ -s "$build/device_tests.txt" ] || return 1
  while read -r name _ program; do
    [[ ! $name =~ $tests ]] || [ -x "$build/$program" ] || return 1
  done < "$build/device_tests.txt"
}
make_build() {
  if is_complete; then
    state="done: carried"
    return
  fi
  [ -z "$emulated" ] || missing "$build lacks programs: build cartan, gpu_benchmark_emulated and cartan_device_tests there"
  [ -n "$nvcc" ] || missing "there is no nvcc on PATH or in CUDAToolkit_ROOT, and $build is not complete"
  command -v cmake > /dev/null || missing "there is no cmake on PATH, and $build is not complete"
  local generator=()
  ! command -v ninja > /dev/null || generator=(-G Ninja)
  if [ ! -f "$build/CMakeCache.txt" ]; then
    limited 600 cmake -S "$here" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCARTAN_TEST_ON_GPU=ON -DCARTAN_BENCHMARKS=ON \
      -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="${capability/./}" > "$work/cmake.log" 2>&1 ||
      { tail -n 20 "$work/cmake.log" >&2 && missing "cmake cannot configure $build"; }
  fi
  local code=0
  limited 3600 cmake --build "$build" -j "$(nproc)" --target cartan gpu_benchmark cartan_device_tests > "$work/build.log" 2>&1 || code=$?
  case $code in
    0) state="done" ;;
    124 | 137) echo "gpu.sh: the time was over while $build was built: start again to go on" >&2 && exit 75 ;;
    *) tail -n 30 "$work/build.log" >&2 && missing "$build cannot be built" ;;
  esac
}

# --- the tests ---

run_tests() {
  local name ranks program code launch
  while read -r name ranks program; do
    [[ $name =~ $tests ]] || continue
    launch=() code=0
    [ "$ranks" = 0 ] || launch=("${MPIRUN:-mpirun}" --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n "$ranks")
    CARTAN_TEST_DEVICE=cuda EMU_CHECK=1 limited 60 "${launch[@]}" "$build/$program" --gtest_color=no > "$work/tests/$name.log" 2>&1 || code=$?
    printf '%s\t%d\n' "$name" "$code" >> "$work/tests.tsv"
  done < "$build/device_tests.txt"
  state="done"
}

# Tests that are quick, of kernels that share memory between threads; products are not ours.
run_sanitizer() {
  local tool name program code sanitizer
  sanitizer=$(command -v compute-sanitizer || command -v "${CUDAToolkit_ROOT:-/usr/local/cuda}/bin/compute-sanitizer" || true)
  if [ -z "$sanitizer" ]; then
    state="skipped: there is no compute-sanitizer"
    return
  fi
  for tool in memcheck racecheck initcheck; do
    while read -r name _ program; do
      [[ $name =~ ^(rows|sums|attention)_test.cuda$ && $name =~ $tests ]] || continue
      code=0
      CARTAN_TEST_DEVICE=cuda limited 25 "$sanitizer" --tool "$tool" --error-exitcode 99 "$build/$program" --gtest_color=no \
        > "$work/sanitizer/$tool-$name.log" 2>&1 || code=$?
      printf '%s\t%s\t%d\n' "$tool" "$name" "$code" >> "$work/sanitizer.tsv"
    done < "$build/device_tests.txt"
  done
  state="done"
}

# --- speed ---

run_benchmark() {
  local code=0 small=()
  [ -z "$emulated" ] || small=(--small)
  # It is told to end in time; the limit is for one that hangs.
  limited 600 "$benchmark" "${small[@]}" --seconds $((until - SECONDS - 2)) --benchmark_out="$work/benchmark.json" --benchmark_out_format=json \
    > "$work/benchmark.log" 2>&1 || code=$?
  state="done"
  [ "$code" = 0 ] || state="failed with $code: $(tail -n 1 "$work/benchmark.log")"
}

make_data() {
  local code=0
  for _ in 1 2 3 4; do
    find "$here"/{src,include,docs,kernels} -type f \( -name '*.?pp' -o -name '*.cu*' -o -name '*.md' \) -print0 | sort -z | xargs -0 cat
  done > "$work/text"
  limited 60 "$cartan" tokenize --input "$work/text" --output "$work/data" > "$work/tokenize.log" 2>&1 || code=$?
  state="done"
  [ "$code" = 0 ] || state="failed with $code: $(tail -n 1 "$work/tokenize.log")"
}

# train NAME STEPS LAST OPTIONS...: so many steps, of a run that would end by itself, with a checkpoint, after LAST
train() {
  local name=$1 steps=$2 last=$3 lines=0 code=0 pid device=cuda load=$work/training/$1.csv
  shift 3
  local metrics=$work/training/$name/metrics.jsonl
  [ -z "$emulated" ] || device=cpu
  "$cartan" train --run.device "$device" --run.dir "$work/training/$name" --run.steps "$last" --data.train "$work/data" --optim.lr 6e-4 \
    --schedule.kind constant --schedule.warmup 10 --checkpoint.every 0 --run.progress never "$@" > "$work/training/$name.log" 2>&1 < /dev/null &
  pid=$!
  while kill -0 "$pid" 2> /dev/null && [ "$SECONDS" -lt "$until" ]; do
    [ ! -f "$metrics" ] || lines=$(wc -l < "$metrics")
    # What the GPU does under load, once.
    [ "$lines" -lt 3 ] || [ -e "$load" ] || nvidia-smi --query-gpu=clocks.sm,clocks.memory,power.draw,temperature.gpu \
      --format=csv,noheader,nounits > "$load" 2> /dev/null || true
    [ "$lines" -lt "$steps" ] || [ "$last" = "$steps" ] || break
    sleep 0.2
  done
  state="done"
  if kill -KILL "$pid" 2> /dev/null; then
    [ "$lines" -ge "$steps" ] || state="done: the time was over after $lines of $steps steps"
    wait "$pid" 2> /dev/null || true
  else
    wait "$pid" || code=$?
    [ "$code" = 0 ] || state="failed with $code: $(tail -n 1 "$work/training/$name.log")"
  fi
}
train_135m() {
  if [ -n "$emulated" ]; then
    train smollm2-135m 12 12 --model.preset tiny --seq 64 --batch.global 4 --batch.micro 4 --run.threads 1
  else
    train smollm2-135m 200 200 --model.preset smollm2-135m --seq 2048 --batch.global 16 --batch.micro 8 --precision.compute bf16
  fi
}
train_1b() {
  if [ -n "$emulated" ]; then
    train llama3.2-1b 8 1000000 --model.preset tiny --seq 64 --batch.global 4 --batch.micro 2 --run.threads 1
  elif [ "$memory_mib" -lt 45000 ]; then
    state="skipped: it needs 45 GB of GPU memory"
  else
    train llama3.2-1b 30 1000000 --model.preset llama3.2-1b --seq 2048 --batch.global 16 --batch.micro 4 --precision.compute bf16
  fi
}

# What CUDA graphs save where kernels are short: the same training with and without them.
train_graphs() {
  local graphs more=(--model.preset smollm2-135m --seq 512 --batch.global 8 --batch.micro 1 --precision.compute bf16)
  [ -z "$emulated" ] || more=(--model.preset tiny --seq 32 --batch.global 4 --batch.micro 1 --run.threads 1)
  for graphs in true false; do
    train "graphs-$graphs" 40 40 "${more[@]}" --run.graphs "$graphs"
    [ "$state" = "done" ] || break
  done
}

if begin build 3600; then make_build; fi; finish
if begin tests 90; then run_tests; fi; finish
if begin benchmark 75; then run_benchmark; fi; finish
if begin data 30; then make_data; fi; finish
if begin train-135m 75; then train_135m; fi; finish
if begin graphs 40; then train_graphs; fi; finish
if begin train-1b 75; then train_1b; fi; finish
if begin sanitizer 90; then run_sanitizer; fi; finish
if python3 -B "$here/perf/gpu_report.py" "$work" "$out"; then code=0; else code=$?; fi
say "results are in $out"
exit "$code"

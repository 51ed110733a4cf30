#!/usr/bin/env bash
# slurm/train.sbatch on a real Slurm of four nodes: a run that is signalled, saves, exits with 75, is queued again and
# goes on has the same bits of loss as a run that nobody disturbed. Then: a slot without progress is not repeated,
# scancel is final, and srun without PMIx is refused.
#
#   CARTAN=/path/to/cartan train_test.sh SOURCE_DIR
#
# Exits with 77 (skipped) where cartan is not built or Slurm's packages or rights are missing.
set -u
source_dir=$(cd "$1" && pwd)
lab=$source_dir/tests/slurm/lab
cartan=${CARTAN:-}

if [ -z "$cartan" ] || [ ! -x "$cartan" ]; then
  echo "skipped: no cartan program (CARTAN='$cartan')"
  exit 77
fi

fail() {
  echo "FAILED: $*" >&2
  tail -n 40 "$work"/*.log >&2
  exit 1
}
# until_true SECONDS WHAT COMMAND...
until_true() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || fail "$what did not happen"
    sleep 0.1
  done
}

work=$(mktemp -d)
trap '"$lab/stop.sh" --wipe "$work/lab"; rm -rf "$work"' EXIT
mkdir "$work/lab"
PORT_BASE=$((17000 + $$ % 400 * 10))
export PORT_BASE
environment=$("$lab/start.sh" "$work/lab") || exit $? # 77 where it cannot run here
eval "$environment"
cd "$work" || exit 1

# --- a small run ---------------------------------------------------------------------------------------------
for ((i = 0; i < 400; i++)); do
  echo "line $i of a text that a very small model may learn: $((i * 7919 % 1000)) follows $((i * 104729 % 997))."
done > text.txt
"$cartan" tokenize --input text.txt --output "$work/text" --tokenizer byte > tokenize.log 2>&1 || fail "cartan tokenize"
# More steps than anybody waits for, so that no signal comes too late; the rate does not depend on their number.
cat > run.ini << INI
[run]
steps = 1000000
seed = 7
[model]
hidden = 64
layers = 2
heads = 4
kv-heads = 2
ffn = 128
vocab = 257
[data]
train = $work/text
tokenizer = byte
seq = 64
[batch]
global = 8
micro = 1
[optim]
lr = 1e-3
[schedule]
kind = constant
[checkpoint]
every = 1000
INI

# losses FILE: one "step loss" a line, with the digits as they stand in the file
losses() {
  sed -nE 's/.*"step": *([0-9]+).*/\1 &/p' "$1" |
    sed -nE 's/^([0-9]+) .*"loss": *([^,} ]+).*/\1 \2/p' | sort -n
}
steps_done() { [ -f "$1/metrics.jsonl" ] && [ "$(losses "$1/metrics.jsonl" | wc -l)" -ge "$2" ]; }
field() { scontrol show job -o "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }
state_is() { [ "$(field "$1" JobState)" = "$2" ]; }
submit() { # LOG [SBATCH OPTIONS...] -- [CARTAN OPTIONS...]
  local log=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1") && shift; done
  shift
  CARTAN=$cartan sbatch --parsable --nodes=4 --ntasks-per-node=1 --time=10 --output="$work/$log" "${options[@]}" \
    "$source_dir/slurm/train.sbatch" "$work/run.ini" "$@"
}

# --- signalled, queued again, finished --------------------------------------------------------------------------
# The first signal reaches the batch shell, which passes it on; the second, in the next start, the ranks themselves.
job=$(submit parts.log -- --run.dir "$work/parts") || fail "sbatch"
until_true 120 "step 20" steps_done parts 20
scancel --batch --signal=USR1 "$job"
until_true 120 "the restart" grep -q "start 1 of job" parts.log
first=$(losses parts/metrics.jsonl | tail -n 1 | cut -d' ' -f1)
grep -q "cartan ended with 75; newest checkpoint: step $first" parts.log || fail "no checkpoint at the last step $first"
until_true 120 "20 more steps" steps_done parts $((first + 20))
scancel --signal=USR1 "$job"
until_true 120 "the second restart" grep -q "start 2 of job" parts.log
second=$(losses parts/metrics.jsonl | tail -n 1 | cut -d' ' -f1)
until_true 120 "20 steps after that" steps_done parts $((second + 20))
# The third start finds that all steps are done, and the job is over.
sed -i "s/^steps = .*/steps = $first/" run.ini
scancel --signal=USR1 "$job"
until_true 120 "the end of the job" state_is "$job" COMPLETED
grep -q "start 3 of job" parts.log || fail "the job ended before its steps were done"
losses parts/metrics.jsonl > parts.txt
steps=$(wc -l < parts.txt)
mpirun -n 1 "$cartan" train --config run.ini --steps "$steps" --run.dir "$work/whole" > whole.log 2>&1 ||
  fail "the undisturbed run: $?"
losses whole/metrics.jsonl > whole.txt
diff whole.txt parts.txt > difference.log || fail "the losses differ from those of an undisturbed run"
sed -i "s/^steps = .*/steps = 1000000/" run.ini

# --- no progress, cancelled --------------------------------------------------------------------------------------
# A stand-in that always says 75 without a new checkpoint would be queued for ever.
printf '#!/bin/sh\nexit 75\n' > stuck && chmod +x stuck
job=$(CARTAN=$work/stuck sbatch --parsable --nodes=1 --output="$work/stuck.log" \
  "$source_dir/slurm/train.sbatch" "$work/run.ini" --run.dir "$work/nowhere")
until_true 120 "the end of a run without progress" state_is "$job" FAILED
[ "$(field "$job" ExitCode)" = 75:0 ] || fail "exit code $(field "$job" ExitCode), not 75"
grep -q "no new checkpoint" stuck.log || fail "no word on why the job was not queued again"

# A rank that leaves too slowly is killed, and srun may say 143 for 75: with a checkpoint of the last step it is a stop.
cat > slow << 'SH'
#!/bin/sh
while [ "$1" != --run.dir ]; do shift; done
[ ! -e "$2/checkpoints/step-5.h5" ] || exit 0
[ "$SLURM_PROCID" = 0 ] || exec sleep 60
mkdir -p "$2/checkpoints"
echo '{"step": 5, "loss": 1}' > "$2/metrics.jsonl"
touch "$2/checkpoints/step-5.h5"
exit 75
SH
chmod +x slow
job=$(CARTAN=$work/slow sbatch --parsable --nodes=2 --ntasks-per-node=1 --output="$work/slow.log" \
  "$source_dir/slurm/train.sbatch" "$work/run.ini" --run.dir "$work/slow.d")
until_true 120 "the end of a run with a slow rank" state_is "$job" COMPLETED
grep -q "start 1 of job" slow.log || fail "a stop with a slow rank did not bring the job back"

job=$(submit cancelled.log -- --run.dir "$work/cancelled") || fail "sbatch"
until_true 120 "step 20" steps_done cancelled 20
scancel "$job"
until_true 120 "the end of a cancelled job" state_is "$job" CANCELLED
sleep 1
{ [ "$(field "$job" Restarts)" = 0 ] && state_is "$job" CANCELLED; } || fail "a cancelled job was queued again"

# --- srun without PMIx -------------------------------------------------------------------------------------------
srun --mpi=none --nodes=4 --ntasks-per-node=1 "$cartan" train --config run.ini --run.dir "$work/single" > single.log 2>&1
code=$?
case $code in 71 | 78) ;; *) fail "four singletons: exit code $code, not 71 or 78" ;; esac
grep -q -- --mpi= single.log || fail "no hint at srun --mpi"
[ ! -e single/metrics.jsonl ] || fail "singletons trained"
echo "train.sbatch: signalled three times, at steps $first and $second and later; the losses of all $steps steps are the same"

#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds cartan, and lets four MPI ranks train a small
# Llama on the sources and documents of this repository. May be run again: what is done is not done twice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }
data=build/quickstart/data
run=runs/quickstart
config=examples/quickstart.ini
cartan=build/release/src/cli/cartan

say "packages"
scripts/setup.sh

say "build"
mkdir -p build/quickstart
if [ ! -f build/release/build.ninja ]; then
  log=build/quickstart/configure.log
  # The GPU kernels take minutes to compile; this run is for CPUs.
  cmake --preset release -DCARTAN_TESTS=OFF -DCARTAN_WITH_CUDA=OFF > $log 2>&1 || { cat $log; exit 1; }
fi
cmake --build --preset release --target cartan

say "text to tokens"
inputs=(src include tests cmake scripts slurm spack docs ./*.md CMakeLists.txt)
changed() { [ -n "$(find "${inputs[@]}" -type f -newer $data.idx -print -quit)" ]; }
# The text of a run that has begun stays as it is.
if [ ! -e $data.idx ] || { [ ! -d $run ] && changed; }; then
  $cartan tokenize --tokenizer byte --input "${inputs[@]}" --output $data
else
  echo "$data.bin is there already"
fi

say "training: four ranks, one thread each"
# Four ranks on two cores: they may share cores (oversubscribe), are not bound, and yield while they wait.
# The first two variables let mpirun run as root, as in a container.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
code=0
mpirun -n 4 --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 $cartan train --config $config || code=$?
if [ $code = 75 ]; then
  echo "stopped early, with a checkpoint: run this script again to go on"
fi
[ $code = 0 ] || exit $code

say "the loss"
# Twenty bars: each is the mean of a twentieth of the run.
awk '
  match($0, /"step": *[0-9]+/) { step = substr($0, RSTART, RLENGTH); sub(/.*: */, "", step); step += 0 }
  match($0, /"loss": *[-+.eE0-9]+/) {
    value = substr($0, RSTART, RLENGTH); sub(/.*: */, "", value)
    if (!(step in loss)) ++count
    loss[step] = value
    if (step > last) last = step + 0
  }
  END {
    if (count == 0) { print "no losses in the metrics"; exit 1 }
    width = last / 20; if (width < 1) width = 1
    for (i = 1; i <= last; ++i) if (i in loss) { bin = int((i - 1) / width); sum[bin] += loss[i]; n[bin]++ }
    for (bin = 0; bin < 20; ++bin) if (n[bin] && sum[bin] / n[bin] > top) top = sum[bin] / n[bin]
    for (bin = 0; bin < 20; ++bin) if (n[bin]) {
      mean = sum[bin] / n[bin]; bar = ""
      for (k = 0; k < 60 * mean / top; ++k) bar = bar "#"
      printf "  step %5d  %7.4f  %s\n", (bin + 1) * width, mean, bar
    }
  }' $run/metrics.jsonl

checkpoint=$(find $run/checkpoints -name 'step-*.h5' | sort -V | tail -n 1)
say "what the model writes"
$cartan generate --from "$checkpoint" --prompt "// The " --max-new-tokens 200 --temperature 0.7 --seed 1

say "done"
cat << END
  checkpoint   $checkpoint   ($cartan inspect $checkpoint)
  metrics      $run/metrics.jsonl
  start over   rm -r $run && scripts/quickstart.sh
  go further   raise steps in $config, or: mpirun -n 2 $cartan train --config $config --steps 800
END

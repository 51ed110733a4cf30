#!/usr/bin/env bash
# Builds cartan with warnings as errors and runs every test, then the unit tests under AddressSanitizer with
# UndefinedBehaviorSanitizer and under ThreadSanitizer. The last line counts tests over all of these runs.
#
#   scripts/test.sh [--tidy] [--quick]     --tidy: clang-tidy over all sources first; --quick: no sanitizers
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

tidy='' presets=(release asan tsan)
for option in "$@"; do
  case $option in
    --tidy) tidy=1 ;;
    --quick) presets=(release) ;;
    *)
      echo "test.sh: unknown option '$option'; there are --tidy and --quick" >&2
      exit 64
      ;;
  esac
done

jobs=$(nproc)
passed=0 failed=0 skipped=0
step() { printf '\n== %s (%d min %02d s)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

finish() {
  printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [ "$failed" = 0 ] || exit 1
  exit 0
}
# broken WHAT: something before the tests went wrong, which counts as one failure
broken() {
  echo "test.sh: $*" >&2
  failed=$((failed + 1))
  finish
}

# count FILE: adds the numbers of a JUnit report of ctest, whose first element carries them
count() {
  local tests fails skips
  tests=$(sed -nE 's/^[ \t]*tests="([0-9]+)".*/\1/p' "$1" | head -n 1)
  fails=$(sed -nE 's/^[ \t]*failures="([0-9]+)".*/\1/p' "$1" | head -n 1)
  skips=$(sed -nE 's/^[ \t]*skipped="([0-9]+)".*/\1/p' "$1" | head -n 1)
  passed=$((passed + tests - fails - skips)) failed=$((failed + fails)) skipped=$((skipped + skips))
}

step "packages"
scripts/setup.sh --tests || broken "the packages cannot be installed"

for preset in "${presets[@]}"; do
  step "$preset: configure and build"
  # GCC takes instrumented code for uninitialized memory here and there: its warnings are errors in plain code only.
  werror=OFF
  [ "$preset" != release ] || werror=ON
  cmake --preset "$preset" -DCARTAN_WERROR=$werror -DCARTAN_TESTS=ON || broken "$preset: cmake failed"
  cmake --build --preset "$preset" -j "$jobs" || broken "$preset: the build failed"

  if [ "$preset" = release ] && [ -n "$tidy" ]; then
    step "clang-tidy"
    if run-clang-tidy -quiet -p build/release -j "$jobs" "$PWD/src/.*" > build/tidy.log 2>&1; then
      passed=$((passed + 1))
    else
      grep -E '(warning|error):' build/tidy.log | sort -u
      failed=$((failed + 1))
    fi
  fi

  step "$preset: tests"
  report=$PWD/build/$preset/junit.xml
  rm -f "$report"
  launch=()
  # ThreadSanitizer needs the addresses that it expects: without randomization they are there on every kernel.
  if [ "$preset" = tsan ] && setarch -R true 2> /dev/null; then launch=(setarch -R); fi
  # Most tests of the program wait for something: twice as many as there are cores.
  "${launch[@]}" ctest --preset "$preset" -j $((2 * jobs)) --output-junit "$report"
  [ -s "$report" ] || broken "$preset: ctest ran no test"
  count "$report"
done
finish

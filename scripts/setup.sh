#!/usr/bin/env bash
# Installs what cartan needs, by package name, on Debian 12 (root, or sudo): only what is missing, so a second run
# needs neither network nor time.
#
#   scripts/setup.sh [--tests]      --tests: also what the tests, sanitizers and linters use
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  g++ cmake ninja-build git pkg-config
  libopenmpi-dev openmpi-bin libhdf5-openmpi-dev hdf5-tools libboost-program-options-dev
  libdnnl-dev libhwy-dev
  nlohmann-json3-dev libfmt-dev libspdlog-dev libxxhash-dev libyaml-cpp-dev libpcre2-dev libutf8proc-dev
)
test_packages=(
  libgtest-dev libgmock-dev libbenchmark-dev
  libboost-context-dev libopenblas-dev
  clang libclang-rt-dev clang-format clang-tidy shellcheck
  slurmctld slurmd slurm-client munge libpmix-dev
  python3 python3-venv python3-h5py python3-numpy
)
case ${1:-} in
  '') ;;
  --tests) packages+=("${test_packages[@]}") ;;
  *)
    echo "setup.sh: unknown option '$1'; the only one is --tests" >&2
    exit 64
    ;;
esac

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
  echo "setup.sh: this is no Debian system, so nothing is installed; docs/admin.md lists what cartan needs" >&2
  exit 0
fi

missing=()
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2> /dev/null || true)
for package in "${packages[@]}"; do
  grep -qx "installed $package" <<< "$installed" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo > /dev/null; then
      echo "setup.sh: root or sudo is needed to install: ${missing[*]}" >&2
      exit 71
    fi
    as_root=(sudo)
  fi
  echo "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "${missing[@]}" > /dev/null
fi

# ruff checks the spack recipe. Debian has no package of it, so it comes from PyPI into a folder of its own; where that
# cannot be reached the test that uses it is skipped.
if [ "${1:-}" = --tests ] && ! command -v ruff > /dev/null && [ ! -x build/tools/bin/ruff ]; then
  if ! { python3 -m venv build/tools && build/tools/bin/pip install --quiet --retries 1 --timeout 15 ruff; } > /dev/null 2>&1; then
    echo "setup.sh: ruff cannot be installed; the style of the spack recipe is not checked"
  fi
fi

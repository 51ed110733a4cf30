#!/usr/bin/env bash
# The spack repository passes ruff, with the rules that spack's own recipes are checked with.
#   style_test.sh SOURCE_DIR
# ruff is taken from PATH, or from build/tools where scripts/setup.sh --tests puts it.
set -euo pipefail
cd "$1"
PATH=$PATH:$PWD/build/tools/bin
if ! command -v ruff > /dev/null; then
  echo "skipped: ruff is not installed"
  exit 77
fi
ruff format --no-cache --config spack/ruff.toml --diff spack tests/spack
ruff check --no-cache --config spack/ruff.toml spack tests/spack

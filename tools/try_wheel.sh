#!/usr/bin/env bash
# Builds wheel and sdist, then installs the wheel in clean environments, one for each extra, and uses it there.
#   tools/try_wheel.sh                 # the plain wheel and every extra; into dist/
#   tools/try_wheel.sh "" train        # the plain wheel and [train] alone
#   tools/try_wheel.sh build           # builds, and tries nothing
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
constraints=$PWD/constraints.txt
extras=("$@")
[ $# -gt 0 ] || extras=("" train tensorboard mlflow wandb flower postgres parquet images docs dev)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

rm -rf dist build/lib build/bdist.*
"$python" -m venv "$scratch/build"
"$scratch/build/bin/pip" --quiet --disable-pip-version-check install build
"$scratch/build/bin/python" -m build --outdir dist . >"$scratch/log" || { cat "$scratch/log"; exit 1; }
ls dist

[ "${extras[*]}" != build ] || exit 0
for extra in "${extras[@]}"; do
  home=$scratch/with-${extra:-nothing}
  "$python" -m venv "$home"
  "$home/bin/pip" --quiet --disable-pip-version-check install --constraint "$constraints" \
    "$(echo dist/*.whl)${extra:+[$extra]}"
  (
    cd "$home" && export PATH=$home/bin:$PATH PYTHONPATH=
    fedspend --version
    fedspend new first --template quickstart >/dev/null && cd first
    fedspend plan quickstart.toml --set train.rounds=2 -o plan.json >/dev/null
    fedspend verify plan.json >/dev/null
    case "$extra" in
      train) fedspend train quickstart.toml --set train.rounds=2 -o runs/first | tail -n 1 ;;
      flower) fedspend new ../federation --template flower >/dev/null ;;
    esac
  )
  echo "installed and used: fedspend${extra:+[$extra]}"
  rm -rf "$home"
done

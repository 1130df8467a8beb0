#!/bin/sh
# One run: sh run.sh NAME [resume=true] [check=true]. Its files are in runs/NAME.
set -eu
cd "$(dirname "$0")"
. ./env.sh
[ $# -ge 1 ] || { echo "say how the run is called: sh run.sh first" >&2; exit 2; }
name=$1
shift
mkdir -p runs
exec flwr run ../app consortium --stream \
    --run-config "config=\"$PWD/training.toml\" output=\"$PWD/runs/$name\" $*"

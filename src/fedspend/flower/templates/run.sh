#!/bin/sh
# One run: sh run.sh NAME [resume=true] [check=true]. Its files are in runs/NAME. Exit code 0: it
# completed; 1: it did not, because it was refused, failed, was stopped, or goes on: Ctrl-C ends this
# script, and not the run.
set -eu
cd "$(dirname "$0")"
. ./env.sh
[ $# -ge 1 ] || { echo "say how the run is called: sh run.sh first" >&2; exit 2; }
name=$1
shift
mkdir -p runs

fail() { echo "run.sh: $1" >&2; exit 1; }
value() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" | head -n 1; }  # KEY: of JSON by Flower

# Flower's own commands exit with 0 also if the run fails, and so it is asked in the end.
told=$(flwr run ../app consortium --format json \
    --run-config "config=\"$PWD/training.toml\" output=\"$PWD/runs/$name\" $*") || true
run=$(printf '%s\n' "$told" | value run-id)
[ -n "$run" ] || { echo "$told" >&2; fail "$name did not start; what Flower says is above"; }
echo "$name is Flower's run $run"
trap : INT  # so that it is still said how the run is
flwr log "$run" consortium --stream || true
status=$(flwr list consortium --run-id "$run" --format json | value status)
case $status in
finished:completed) ;;
finished:*) fail "$name did not complete (Flower says $status of run $run); its log is above" ;;
*) fail "$name is not over (Flower says ${status:-nothing} of run $run): follow it with \
'flwr log $run consortium --stream', or end it with 'flwr stop $run consortium'" ;;
esac

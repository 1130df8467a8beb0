#!/bin/sh
# Makes the public keys in public/ known to the SuperLink, which must be running.
set -eu
cd "$(dirname "$0")"
. ./env.sh
for file in public/*.pub; do
    flwr supernode register "$file" consortium
done

#!/bin/sh
# Starts the SuperLink, and stays in the foreground. Nodes that are not registered are turned away.
set -eu
cd "$(dirname "$0")"
. ./env.sh
exec flower-superlink --host @BIND@ --port @PORT@ --enable-supernode-auth \
    --disable-runtime-dependency-installation \
    --ssl-certfile tls/server.crt --ssl-keyfile tls/server.key --ssl-ca-certfile tls/ca.crt

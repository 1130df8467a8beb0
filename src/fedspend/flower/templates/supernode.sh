#!/bin/sh
# Starts this node, and stays in the foreground. server-ca.crt is the server's tls/ca.crt.
set -eu
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
exec flower-supernode --superlink @HOST@:@PORT@ --root-certificates server-ca.crt \
    --auth-supernode-private-key node.key --host 127.0.0.1 --port "${FEDSPEND_NODE_PORT:-9094}" \
    --ssl-certfile tls/server.crt --ssl-keyfile tls/server.key --ssl-ca-certfile tls/ca.crt \
    --node-config "fedspend=\"$PWD/node.toml\""

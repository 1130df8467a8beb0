# For every command of Flower's at the server: its own folder, and no telemetry or update checks.
export FLWR_HOME="${FEDSPEND_SERVER:-$PWD}/flwr"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1

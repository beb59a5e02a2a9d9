#!/bin/sh
# Starts the GAIA environment's tool servers on this machine, for this machine (AWorld's `sh run-local.sh`).
exec "${PYTHON:-python}" -m ajet env up "${1:-gaia-mcp-server}"

#!/usr/bin/env bash
# ./eval_example.sh RUN_NAME: the held-out tasks, with the model that training begins with and with the run's own.
set -u
run=${1:?the name of a run}
exec ${AJET:-ajet} eval --conf "$(dirname "$0")/eval.yaml" --model base --model "$run" "${@:2}"

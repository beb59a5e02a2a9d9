#!/usr/bin/env bash
# GRPO: one trainer, two samplers.
#   ./grpo_example.sh RUN_NAME                                     SQLite, in the run folder
#   ./grpo_example.sh RUN_NAME mongodb://127.0.0.1:27017/RUN_NAME  MongoDB
set -u
run=${1:?a name for the run}
store=${2:-sqlite:launcher_record/$run/store.db}
yaml=$(dirname "$0")/grpo.yaml
mkdir -p launcher_record/$run/logs
for n in 1 2; do
  ${AJET:-ajet} sample --conf "$yaml" --store "$store" --name "sampler-$n" "experiment_name=$run" "${@:3}" \
    >> "launcher_record/$run/logs/${run}_sampler_$n.log" 2>&1 &
done
trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT
${AJET:-ajet} train --conf "$yaml" --backbone local --from-store "$store" "experiment_name=$run" "${@:3}"
code=$?
[ $code -eq 0 ] && wait   # the samplers end with the training
exit $code

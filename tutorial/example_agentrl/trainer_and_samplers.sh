#!/usr/bin/env bash
# ./trainer_and_samplers.sh YAML RUN_NAME [STORE]: one trainer and two samplers; the store is SQLite, in the run folder,
# or another one, mongodb://127.0.0.1:27017/RUN_NAME for instance.
set -u
yaml=${1:?a YAML file}
run=${2:?a name for the run}
store=${3:-sqlite:launcher_record/$run/store.db}
mkdir -p "launcher_record/$run/logs"
for n in 1 2; do
  ${AJET:-ajet} sample --conf "$yaml" --store "$store" --name "sampler-$n" "experiment_name=$run" "${@:4}" \
    >> "launcher_record/$run/logs/${run}_sampler_$n.log" 2>&1 &
done
trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT
${AJET:-ajet} train --conf "$yaml" --backbone local --from-store "$store" "experiment_name=$run" "${@:4}"
code=$?
[ $code -eq 0 ] && wait   # the samplers end with the training
exit $code

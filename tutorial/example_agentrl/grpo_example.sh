#!/usr/bin/env bash
# GRPO, one trainer and two samplers: ./grpo_example.sh RUN_NAME [mongodb://127.0.0.1:27017/RUN_NAME]
exec "$(dirname "$0")/trainer_and_samplers.sh" "$(dirname "$0")/grpo.yaml" "$@"

"""Render a batch script for Slurm: Ray's head on the first node, workers on the others, the run next to the head.

Invariant: the run starts when the head answers, and waits for the workers itself. At the end of the script its steps
end, and leftovers of Ray are removed on every node; a run asked to end is queued again. Slurm passes the submitting
shell's environment, and the run reads .env files, so no secret is written.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from ajet_cluster.job import ClusterJob

WARNING_S = 120
"""Seconds before the time limit when the run is asked to end after its step, with a checkpoint."""
PREEMPTED = 75
"""Exit code of a run ended by SIGTERM (`ajet.cli.exit`)."""
LEFTOVERS_MODULE = "ajet_ray.cluster.leftovers"
"""Module that starts Ray on each node and removes leftovers of Ray's processes."""

_SCRIPT = """\
#!/usr/bin/env bash
# {name}: written by `ajet cluster render slurm`. Start it with `sbatch FILE`; options of sbatch win over those below.
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
# Whole nodes; where they are shared, write --cpus-per-task and --mem in place of the two lines above.
{accelerators}#SBATCH --output=%x-%j.log
#SBATCH --signal=B:TERM@{warning}
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

bin=${{AJET_BIN:-{bin}}} # of the environment with ajet[verl]; every node sees it
cd {folder}

step=(srun --overlap --ntasks-per-node=1 --cpu-bind=none --mem=0)
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${{nodes[0]}}
on_head=("${{step[@]}}" --nodes=1 --ntasks=1 --nodelist="$head")
address=$("${{on_head[@]}}" hostname --ip-address)
case $address in 127.*) address=$("${{on_head[@]}}" hostname --all-ip-addresses) ;; esac
address=${{address%% *}}
port=$((20000 + SLURM_JOB_ID % 10000))
temporary=/tmp/ray-$SLURM_JOB_ID

export RAY_AUTH_MODE=token RAY_AUTH_TOKEN # nobody else's commands are taken; older Rays know neither and ask nobody
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')

steps=()
run=
again=
finish() {{
  trap - EXIT TERM INT
  if [ -n "$run" ]; then
    kill -TERM "$run" 2>/dev/null || true
    ended=0
    wait "$run" || ended=$?
    [ "$ended" != {preempted} ] || again=yes # it has saved what it has, and goes on when it is started again
  fi
  for ((each = ${{#steps[@]}} - 1; each >= 0; each--)); do
    kill -TERM "${{steps[each]}}" 2>/dev/null || true
    wait "${{steps[each]}}" 2>/dev/null || true
  done
  "${{step[@]}}" --nodes={nodes} --ntasks={nodes} rm -rf "$temporary" || true
  [ -z "$again" ] || scontrol requeue "$SLURM_JOB_ID" || true # not where --no-requeue was asked for
}}
trap finish EXIT
trap 'exit 143' TERM INT

ray_start=("$bin/python" -I -m {beside} "$bin/ray" start --block --disable-usage-stats {resources})
"${{on_head[@]}}" "${{ray_start[@]}}" --head \\
  --node-ip-address="$address" --port="$port" --include-dashboard=false --temp-dir="$temporary" &
steps+=($!)

answers=
for _ in {{1..150}}; do
  if "$bin/ray" health-check --address "$address:$port" >/dev/null 2>&1; then answers=yes; break; fi
  kill -0 "${{steps[0]}}" 2>/dev/null || break
  sleep 1
done
[ -n "$answers" ] || {{ echo "Ray's head on $head does not answer at $address:$port" >&2; exit 1; }}
{workers}
export RAY_ADDRESS=$address:$port
"$bin"/{command} &
run=$!
code=0
wait "$run" || code=$?
run=
[ "$code" != {preempted} ] || again=yes
exit "$code"
"""
_WORKERS = """
"${{step[@]}}" --nodes={others} --ntasks={others} --exclude="$head" "${{ray_start[@]}}" \\
  --address="$address:$port" &
steps+=($!)
"""


def render_slurm(job: ClusterJob) -> str:
    """Return the text of the batch script."""
    worker_count = job.nodes - 1
    return _SCRIPT.format(
        name=job.name,
        nodes=job.nodes,
        accelerators=_format_accelerators(job),
        warning=WARNING_S,
        preempted=PREEMPTED,
        bin=shlex.quote(str(Path(sys.prefix) / "bin")),
        folder=shlex.quote(str(job.folder)),
        resources=_format_resources(job),
        beside=LEFTOVERS_MODULE,
        workers=_WORKERS.format(others=worker_count) if worker_count else "",
        command=shlex.join(job.command),
    )


def _format_accelerators(job: ClusterJob) -> str:
    """Return the #SBATCH line that requests accelerators, or "" for a job without any."""
    if not job.accelerators or job.kind == "cpu":
        return ""
    option = f"gpus-per-node={job.accelerators}" if job.kind == "cuda" else f"gres=npu:{job.accelerators}"
    return f"#SBATCH --{option}\n"


def _format_resources(job: ClusterJob) -> str:
    """Return the options of `ray start` for the accelerators and CPUs of each node."""
    option = f"--resources='{{\"NPU\": {job.accelerators}}}'" if job.kind == "npu" else f"--num-gpus={job.accelerators}"
    return option if job.cpus is None else f"{option} --num-cpus={job.cpus}"

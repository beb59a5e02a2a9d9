"""How fast N processes of this machine add up a tensor: `DTensor`'s all-reduce, which sharded training sends gradients
by, over NCCL with a GPU for each process and over gloo without.

Invariant: every process that `all_reduce_pace` starts has ended when it returns, also by an error; the processes find
each other by a file in a folder of their own and take no port that has a name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from ajet.schema.errors import UserError

BYTES = 64 << 20
ROUNDS = 5
SECONDS = 120.0
"""After which processes that have not found each other are given up."""


class AllReduce(NamedTuple):
    """The measured pace of an all-reduce over several processes."""

    transport: str
    """nccl or gloo."""
    bandwidth: float
    """Bytes a second that each process sends and receives at least: 2 (N - 1) / N of the tensor."""


def all_reduce_pace(processes: int) -> AllReduce:
    """The pace of `processes` on this machine, after a warm-up, the best of some rounds. Raises UserError where they
    fail."""
    with tempfile.TemporaryDirectory(prefix="ajet-") as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if sys.platform == "linux":
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        command = [sys.executable, __file__, str(Path(folder, "meeting")), str(processes)]
        started: list[subprocess.Popen[str]] = []
        try:
            for rank in range(processes):
                pipe = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
                with Path(folder, f"{rank}.err").open("w") as told:
                    started.append(
                        subprocess.Popen([*command, str(rank)], env=environment, text=True, stdout=pipe, stderr=told)
                    )
            told_by_first, _ = started[0].communicate(timeout=SECONDS)
            if started[0].returncode != 0:
                raise _failed(Path(folder), processes)
            found = AllReduce(*json.loads(told_by_first.splitlines()[-1]))
            for each in started[1:]:
                each.wait(SECONDS)
            return found
        except subprocess.TimeoutExpired:
            raise _failed(Path(folder), processes) from None
        finally:
            for each in started:
                with suppress(ProcessLookupError):
                    each.kill()
                each.wait()


def _failed(folder: Path, processes: int) -> UserError:
    lines = [line for path in sorted(folder.glob("*.err")) for line in path.read_text().strip().splitlines()[-1:]]
    return UserError(
        f"{processes} processes could not add up a tensor: {lines[0][:300] if lines else 'none of them answered'}",
        where="--world-size",
        expected=f"{processes} processes of this machine that reach each other, over loopback or NCCL",
        do="try fewer; with GPUs, at most one process for each",
    )


def main() -> None:
    """Run one of the processes; the first prints what was measured."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    meeting, processes, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    gpus = torch.cuda.is_available() and torch.cuda.device_count() >= processes
    transport, kind = ("nccl", "cuda") if gpus else ("gloo", "cpu")
    if gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group(transport, init_method=f"file://{meeting}", rank=rank, world_size=processes)
    mesh = init_device_mesh(kind, (processes,))
    part = torch.full((BYTES // 4,), float(rank + 1), device=kind)
    best = float("inf")
    for turn in range(ROUNDS + 1):
        dist.barrier()
        began = time.perf_counter()
        whole = DTensor.from_local(part, mesh, [Partial()]).redistribute(mesh, [Replicate()]).to_local()
        if gpus:
            torch.cuda.synchronize()
        if turn:  # the first warms up
            best = min(best, time.perf_counter() - began)
        assert float(whole[0]) == processes * (processes + 1) / 2, "the sum is wrong"
    if rank == 0:
        print(json.dumps([transport, 2 * (processes - 1) / processes * BYTES / best]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""`debug`: the debug backbone."""

from __future__ import annotations

from ajet.config.schema.base import Section, key

IN_PROCESS = "the debug backbone's engine runs inside this process"


class Debug(Section):
    """The debug backbone."""

    debug_max_parallel: int = key(4, "Episodes that run at the same time.", ge=1)
    debug_first_n_tasks: int = key(2, "Tasks to play.", ge=1)
    debug_vllm_port: int = key(18000, "Accepted, ignored.", ignored=IN_PROCESS)
    debug_vllm_seed: int = key(12345, "Accepted, ignored.", ignored="`ajet.seed` seeds the engine")
    debug_tensor_parallel_size: int = key(4, "Accepted, ignored.", ignored=IN_PROCESS)

"""verl on a machine without an accelerator, for tests and laptops.

Invariant: only processes of a run with `trainer_common.device: cpu` import this package, or show its plug-in to vLLM.
`build_environment` returns their environment variables.
"""

from __future__ import annotations

import os
from pathlib import Path

PLUGIN = Path(__file__).parent / "plugin"
"""A distribution with one entry point, by which vLLM finds `vllm_plugin.register`."""
PLATFORM = "ajet_verl.cpu.platform"


def build_environment() -> dict[str, str]:
    """Return the environment variables of every verl process on a CPU."""
    paths = [str(PLUGIN), os.environ.get("PYTHONPATH", "")]
    return {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": PLATFORM,
        "VERL_ENGINE_DEVICE": "cuda",  # engines are registered for cuda and npu only; this is the registry's key
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }

"""verl on a machine without an accelerator: for tests and laptops, never for speed.

Invariant: nothing of this folder is imported, or found by vLLM, but in the processes of a run whose
`trainer_common.device` is cpu: `environment` is what they get for it.
"""

from __future__ import annotations

import os
from pathlib import Path

PLUGIN = Path(__file__).parent / "plugin"
"""A distribution that holds nothing but the entry point by which vLLM finds `vllm_plugin.register`."""
PLATFORM = "ajet_verl.cpu.platform"


def build_environment() -> dict[str, str]:
    """Variables that every process of verl needs here."""
    paths = [str(PLUGIN), os.environ.get("PYTHONPATH", "")]
    return {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": PLATFORM,
        "VERL_ENGINE_DEVICE": "cuda",  # the engines are registered for cuda and npu only; this names the registry's key
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }

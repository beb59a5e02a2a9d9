"""Trinity on a machine without an accelerator: for tests and laptops, never for speed.

Invariant: this folder is imported, or found by vLLM, only in processes of a run with `trainer_common.device: cpu`;
otherwise nothing of Trinity, verl, vLLM or torch is changed. verl's platform is the verl backbone's.
"""

from __future__ import annotations

from pathlib import Path

from ajet_verl import cpu as verls

PLUGIN = Path(__file__).parent / "plugin"
"""A distribution with a single entry point, by which vLLM finds `rollout.register`."""
NAME = "ajet_trinity_cpu"


def build_environment() -> dict[str, str]:
    """Return the environment variables of Trinity's processes on a CPU, without PYTHONPATH."""
    variables = verls.build_environment()
    del variables["PYTHONPATH"]
    return variables | {
        "VERL_USE_EXTERNAL_MODULES": "ajet_trinity.cpu.trainer",
        "VLLM_PLUGINS": NAME,  # Trinity's own plugin imports names that vLLM 0.28 lacks
    }

"""Trinity on a machine without an accelerator: for tests and laptops, never for speed.

Invariant: nothing of this folder is imported, or found by vLLM, but in the processes of a run whose
`trainer_common.device` is cpu; nothing of Trinity, verl, vLLM or torch is changed elsewhere. verl's platform is the one
that the verl backbone has.
"""

from __future__ import annotations

from pathlib import Path

from ajet_verl import cpu as verls

PLUGIN = Path(__file__).parent / "plugin"
"""A distribution that holds nothing but the entry point by which vLLM finds `rollout.register`."""
NAME = "ajet_trinity_cpu"


def build_environment() -> dict[str, str]:
    """Variables that every process of Trinity needs here, but for where it looks for packages."""
    found = verls.build_environment()
    del found["PYTHONPATH"]
    return found | {
        "VERL_USE_EXTERNAL_MODULES": "ajet_trinity.cpu.trainer",
        "VLLM_PLUGINS": NAME,  # and not Trinity's own: it imports what vLLM 0.28 does not have
    }

"""vLLM's plug-in for verl on a CPU: weights stay as they were loaded, so that the next ones can be loaded over them.

vLLM asks for it by an entry point in every process of its own, which it finds through `cpu.PLUGIN` alone.
"""

from __future__ import annotations

from ajet.engine.vllm.plain_weights import keep_weights_plain


def register() -> None:
    """vLLM calls this when it loads its plugins."""
    keep_weights_plain()

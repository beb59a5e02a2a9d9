"""vLLM plug-in for verl on a CPU: weights stay as loaded, so that new weights can be loaded into them.

Each vLLM process loads the plug-in by an entry point, found through `cpu.PLUGIN` only.
"""

from __future__ import annotations

from ajet_vllm.plain_weights import keep_weights_plain


def register() -> None:
    """Patch vLLM's weight loading. Called by vLLM for each plug-in."""
    keep_weights_plain()

"""What a vLLM server on a CPU is started with where its weights are to be changed:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --worker-extension-cls ajet.engine.vllm.plain_worker.PlainWeights

vLLM imports this module in its worker before it makes the model. Without it the server packs its weights at the start
and says of a later load that it went well, though only a part of the weights was replaced. Invariant: on an accelerator
it changes nothing.
"""

from __future__ import annotations

from ajet.engine.vllm.plain_weights import keep_weights_plain


class PlainWeights:
    """Adds no method to the worker."""


keep_weights_plain()

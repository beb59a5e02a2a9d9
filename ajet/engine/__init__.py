"""Who produces tokens: transformers in this process, vLLM in processes of its own, or a server that is asked.

A `TokenRequest` (exact prompt ids, how to sample, the key of its random numbers) enters, `TokenChunk`s (ids, two
kinds of logprobs, the policy version) leave; where only chat completions can be had, messages enter and leave by a
`ChatEngine`. Also where models come from: `model.path` to files (`model_source`), files to tokenizer and model
(`models`), and the models that ajet brings along (`embedded`). Keeps the invariants written in `contract`.
"""

from ajet.engine.contract import ChatEngine, DrawKey, Sampling, TokenChunk, TokenEngine, TokenRequest

__all__ = ["ChatEngine", "DrawKey", "Sampling", "TokenChunk", "TokenEngine", "TokenRequest"]

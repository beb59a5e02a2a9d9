"""A remote SGLang server as a TokenEngine.

`RemoteSglang(url)` uses the native route `/generate` of a running `sglang serve`; ajet does not start one. The
invariants of remote servers are in `ajet.engine.remote`. `remote` contains SGLang's route, streams and weight loading.
"""

from __future__ import annotations

from ajet.engine.sglang.remote import RemoteSglang

__all__ = ["RemoteSglang"]

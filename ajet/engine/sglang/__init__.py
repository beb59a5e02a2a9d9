"""An SGLang server as a TokenEngine: its own route `/generate`, its weights from a checkpoint folder.

`RemoteSglang(url)` asks a running `sglang serve`; ajet starts none itself. The same invariants as those of every server
elsewhere (`ajet.engine.remote`); what is SGLang's alone stands in `remote`: the route, its streams, how it
gets other weights.
"""

from __future__ import annotations

from ajet.engine.sglang.remote import RemoteSglang

__all__ = ["RemoteSglang"]

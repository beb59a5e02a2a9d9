"""Observing: an agent at work, recorded on its way to a model that is not ours.

In: requests of any client to any endpoint (Chat Completions, Completions, Responses, Messages). Out: the endpoint's
own bytes to the client, and per session an `Episode`. Invariants: what passes is not changed and waits for no disk;
what was said is in the session's file before anything else is done with it; no key is kept; a call that failed, was
cut or left alone by its client is recorded as such.
"""

from ajet.gateway.observing.proxy import Proxy
from ajet.gateway.observing.server import Server
from ajet.gateway.observing.sessions import Sessions

__all__ = ["Proxy", "Server", "Sessions"]

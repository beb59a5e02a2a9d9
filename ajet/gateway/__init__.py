"""The only path from a client to a model, and the only place where calls are captured.

A request runs transport -> App -> RequestExchange -> Dialect.parse -> Session.start_call (InflightCall) ->
render_prompt -> engine -> Recorder -> Dialect.format_reply. In: requests in some client's dialect, with the key of an
(episode, agent, target). Out: replies, and for each episode a `Capture` of `Call`s with the engine's exact ids.
Invariants: the gateway has a thread and an event loop of its own and never runs user code; every reply that an engine
began is recorded, also if the client left or the episode ended; a field that cannot be honoured is refused by name.
"""

from ajet.gateway.recorder import Capture
from ajet.gateway.request import ParsedRequest, Refused
from ajet.gateway.server import Gateway
from ajet.gateway.session import Session

__all__ = ["Capture", "Gateway", "ParsedRequest", "Refused", "Session"]

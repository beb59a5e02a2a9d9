"""Gateway: the only path from clients to a model, and the only place of call capture.

A request runs transport -> App -> RequestExchange -> Dialect.parse -> Session.start_call (InflightCall) ->
render_prompt -> engine -> Recorder -> Dialect.format_reply. In: requests in a client's dialect, with the key of an
(episode, agent, target). Out: replies, and for each episode a `Capture` of `Call`s with the engine's exact ids.

Invariants: the gateway has its own thread and event loop and never runs user code; every reply begun by an engine is
recorded, also if the client left or the episode ended; an unsupported field is refused by name.
"""

from ajet.gateway.recorder import Capture
from ajet.gateway.request import ParsedRequest, Refused
from ajet.gateway.server import Gateway
from ajet.gateway.session import Session

__all__ = ["Capture", "Gateway", "ParsedRequest", "Refused", "Session"]

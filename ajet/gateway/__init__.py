"""The one way from any client to a model, and the one place where calls are captured.

In: requests in some client's dialect, with the key of an (episode, agent, target). Out: replies, and per episode a
`Capture` of `Call`s with the engine's exact ids. Invariants: it has a thread and an event loop of its own and never
runs user code; every reply that an engine began is recorded, also when the client left or the episode ended; a field
that cannot be honoured is refused by name. Dialects are translators of one internal turn.
"""

from ajet.gateway.capture import Capture
from ajet.gateway.server import Gateway
from ajet.gateway.session import Session
from ajet.gateway.turn import Refused, Turn, TurnRequest

__all__ = ["Capture", "Gateway", "Refused", "Session", "Turn", "TurnRequest"]

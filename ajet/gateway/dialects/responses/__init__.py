"""OpenAI Responses, streaming and not, with the state that the protocol keeps on the server.

In: a request's items. Out: a chat conversation for the session, and its reply as items and events. Invariants: the
items of one reply, sent back in any way the protocol has (`previous_response_id`, items, references to items), read as
the very message that was sampled, so the next call extends it; `sequence_number`s count the events of a stream; what
a client asks to have stored lives as long as its episode and no longer.
"""

from ajet.gateway.dialects.responses.dialect import InputTokensDialect, ResponsesDialect
from ajet.gateway.dialects.responses.routes import response_routes

__all__ = ["InputTokensDialect", "ResponsesDialect", "response_routes"]

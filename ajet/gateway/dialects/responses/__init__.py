"""OpenAI Responses, streamed or not, with the state that the protocol stores on the server.

Invariants: the items of one reply, sent back in any way that the protocol has (`previous_response_id`, items,
references to items), are parsed as the very message that was sampled, so that the next call extends it;
`sequence_number`s count the events of a stream; what a client stores lives as long as its episode.
"""

from ajet.gateway.dialects.responses.dialect import InputTokensDialect, ResponsesDialect
from ajet.gateway.dialects.responses.routes import response_routes

__all__ = ["InputTokensDialect", "ResponsesDialect", "response_routes"]

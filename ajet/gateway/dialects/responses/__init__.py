"""OpenAI Responses, streamed or not, with the protocol's state on the server.

Invariants: the items of a reply may be sent back in any form of the protocol (`previous_response_id`, items, references
to items). All forms parse to the sampled message, and the next call extends it. `sequence_number`s count the events of
a stream; stored responses live as long as their episode.
"""

from ajet.gateway.dialects.responses.dialect import InputTokensDialect, ResponsesDialect, response_routes

__all__ = ["InputTokensDialect", "ResponsesDialect", "response_routes"]

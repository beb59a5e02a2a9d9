"""Messages to ids, a conversation extended verbatim, ids to a message.

In: OpenAI-shaped messages and tools, a tokenizer with its chat template. Out: `Rendered` prompts and parsed replies.
Invariant: `extend` never re-encodes what was sampled: its ids are before.ids + reply ids + a newly encoded suffix, and
it answers only if the chat template renders the whole history to exactly that text (but for the spelling of a tool
call that reads as the same, and with `keep_thinking` for stripped thoughts); otherwise the caller forks. How a model
writes is told from its template (`spelling`); `template_doctor` says what a template does to an agent's turns.
"""

from ajet.tokens.parsing import ReplyParser, ReplyStream
from ajet.tokens.renderer import Rendered, Renderer
from ajet.tokens.template import TemplateRefused
from ajet.tokens.token_span import span_of_text

__all__ = ["Rendered", "Renderer", "ReplyParser", "ReplyStream", "TemplateRefused", "span_of_text"]

"""Messages to ids, verbatim extension of conversations, ids to messages.

In: OpenAI-shaped messages and tools, a tokenizer with its chat template. Out: `Rendered` prompts and parsed replies.

Invariant: `extend` never re-encodes sampled tokens. Its ids are before.ids + reply ids + a newly encoded suffix. It
returns a prompt only if the chat template renders the complete history to exactly this text. Two differences are
admitted: an equivalent spelling of a tool call, and with `keep_thinking` stripped thoughts. Otherwise the caller forks.
The template decides the format of tool calls (`style_of`); `template_doctor` reports the effect of a template on an
agent's turns.
"""

from ajet.tokens.parsing import ReplyParser, ReplyStream
from ajet.tokens.renderer import Rendered, Renderer
from ajet.tokens.template import TemplateRefused
from ajet.tokens.token_span import span_of_text

__all__ = ["Rendered", "Renderer", "ReplyParser", "ReplyStream", "TemplateRefused", "span_of_text"]

"""Anthropic's Messages and count_tokens, streamed or not.

Invariant: a conversation means the same here as in Chat Completions, so that both dialects give it the same prompt:
`system` opens it, each tool_result is a message of its own, blocks of text join without a separator. What a client
sends back of a reply is recognised as that reply. Errors have Anthropic's types and name the field.
"""

from ajet.gateway.dialects.anthropic.dialect import AnthropicDialect, CountTokensDialect
from ajet.gateway.dialects.anthropic.errors import error_body
from ajet.gateway.dialects.anthropic.models import model_info, model_page

__all__ = ["AnthropicDialect", "CountTokensDialect", "error_body", "model_info", "model_page"]

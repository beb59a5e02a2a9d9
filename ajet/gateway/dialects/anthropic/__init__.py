"""Anthropic's Messages and count_tokens, streamed or not.

Invariant: a conversation gets the same prompt here as in Chat Completions: `system` opens the conversation, each
tool_result is a separate message, blocks of text join without a separator. A reply sent back by the client is
recognised. Errors have Anthropic's types and name the field.
"""

from ajet.gateway.dialects.anthropic.dialect import AnthropicDialect, CountTokensDialect, model_info, model_page
from ajet.gateway.dialects.anthropic.errors import error_body

__all__ = ["AnthropicDialect", "CountTokensDialect", "error_body", "model_info", "model_page"]

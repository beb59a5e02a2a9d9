"""Gemini's generateContent, streamGenerateContent and countTokens, for google-genai and gemini-cli.

Invariant: a conversation gets the same prompt here as in Chat Completions: contents of the model in a row are one
message, each functionResponse is a separate message, parts of text join without a separator. Errors have Google's form
and name the field.
"""

from ajet.gateway.dialects.gemini.dialect import GeminiCountDialect, GeminiDialect, GeminiStreamDialect
from ajet.gateway.dialects.gemini.reply import error_body, model_info

__all__ = ["GeminiCountDialect", "GeminiDialect", "GeminiStreamDialect", "error_body", "model_info"]

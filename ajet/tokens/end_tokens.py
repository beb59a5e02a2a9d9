"""The tokens that end a reply.

Invariant: end tokens are found in the template's text behind a reply, so the sampled end equals the end in later turns.
A tag that only closes a tool call is not an end token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ajet.schema.call import Ids
from ajet.tokens.content_format import Message
from ajet.tokens.template import ChatTemplate, TemplateRefused

MARK = "\u2b1aAJET-REPLY\u2b1a"
"""Placeholder of a reply, to find the template's own text around it."""
_HARMONY = ("<|return|>", "<|call|>")


def end_ids_of(template: ChatTemplate, tokenizer: Any, encode: Callable[[str], Ids]) -> tuple[int, ...]:
    """Return the tokens that end a reply: the template's own, then the tokenizer's.

    The template writes its end token behind a reply, or only at the beginning of the next turn (GLM).
    """
    vocabulary = tokenizer.get_vocab()
    eos = tokenizer.eos_token_id
    ends: list[int] = []
    if template.style == "harmony":  # <|end|> ends a channel's message, not the reply
        ends += [vocabulary[name] for name in _HARMONY if name in vocabulary]
    else:
        ends += _find_template_ends(template, tokenizer, encode)
    ends += eos if isinstance(eos, list) else [eos] if eos is not None else []
    ends += [vocabulary[name] for name in ("<|eom_id|>",) if name in vocabulary]
    return tuple(dict.fromkeys(ends))


def _find_template_ends(template: ChatTemplate, tokenizer: Any, encode: Callable[[str], Ids]) -> list[int]:
    """Return the tokens that the chat template writes after a reply, because the model learned to stop with them.

    It renders three sample conversations: a reply at the end, one in the middle, and a tool call with its result.
    """
    control_ids = {
        *tokenizer.all_special_ids,
        *(token_id for token_id, added_token in tokenizer.added_tokens_decoder.items() if added_token.special),
    }
    added_ids = {*control_ids, *tokenizer.added_tokens_decoder}
    ask: Message = {"role": "user", "content": "?"}
    answer: Message = {"role": "assistant", "content": MARK}
    call = {"type": "function", "id": "0", "function": {"name": "f", "arguments": {"x": MARK}}}
    call_messages: list[Message] = [ask, {"role": "assistant", "content": "", "tool_calls": [call]}]
    call_messages.append({"role": "tool", "tool_call_id": "0", "content": "?"})
    ends: list[int] = []
    for messages, takes_first_token in (([ask, answer], True), ([ask, answer, ask], True), (call_messages, False)):
        try:
            text_after = template.text(messages, prompt=False).rpartition(MARK)[2]
        except TemplateRefused:
            continue
        ids = encode(text_after).tolist()
        if takes_first_token:  # behind a tool call, the call's own closing tags come first
            ends += [token for token in ids[:1] if token in added_ids]
        else:
            ends += _list_closing_tokens(ids, control_ids, tokenizer)[:1]
    return ends


def _list_closing_tokens(ids: Sequence[int], control: set[int], tokenizer: Any) -> list[int]:
    """Return the control tokens among `ids`, without closing tags such as `</tool_call>`, which belong to the call."""
    return [token for token in ids if token in control and not tokenizer.convert_ids_to_tokens(token).startswith("</")]

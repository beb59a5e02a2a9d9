"""Hosted models: names of models whose weights no one can download.

Invariant: a name that an open model has too (`gpt-oss-20b`, `gpt2`, `org/NAME`) is none of them.
"""

from __future__ import annotations

import re

from ajet.config.other_models import OPENAI
from ajet.schema.commands import command
from ajet.schema.errors import UserError

_OPENAI_NAME = re.compile(r"(?:openai/)?(gpt-[345].*|chatgpt-.+|o[1-9](?:-(?:mini|pro|preview).*)?)")
_OTHER_NAME = re.compile(
    r"(?:(?:anthropic|google|gemini|x-ai|xai|deepseek|dashscope)/)?"
    r"(claude-.+|gemini-.+|grok-.+|deepseek-(?:chat|reasoner)|qwen-(?:max|plus|turbo|long|flash).*)"
)


def refuse_hosted(name: str, expected: str = "") -> None:
    """Raise UserError if `name` is that of a hosted model: it cannot be tuned, but tasks can be evaluated with it."""
    of_openai, other = _OPENAI_NAME.fullmatch(name), _OTHER_NAME.fullmatch(name)
    if (found := of_openai or other) is None:
        return
    model = f"{found[1]}@{OPENAI if of_openai else 'https://HOST/v1'}"
    evaluation = command("eval", "FILE.yaml", "--model", model)
    raise UserError(
        f"{name} is a hosted model: its weights cannot be downloaded, so it cannot be tuned here.",
        where="model.path",
        expected=expected,
        do=f"tune an open model; see how {found[1]} does at the tasks: {evaluation}",
    )

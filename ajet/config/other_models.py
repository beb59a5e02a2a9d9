"""Remote model servers for judges, and for agents whose opponents are models.

Invariant: address and keys come from the environment of the run's start, even if an attempt's own environment names the
gateway (rollout.isolation: process, sandbox).
"""

from __future__ import annotations

import os
from typing import NamedTuple

from ajet.schema.errors import ConfigError, UserError

OUTSIDE = "AJET_OUTSIDE_"
"""Prefix of a variable with a value from the run's environment."""
DASHSCOPE = "https://dashscope.aliyuncs.com/compatible-mode/v1"
OPENAI = "https://api.openai.com/v1"


def read_outside_variable(name: str) -> str:
    """Return a variable's value at the run's start, or "".

    An attempt's own environment may hold the gateway's address under the same name. Blanks and line ends are stripped,
    because clients refuse such a key with an error that shows it.
    """
    return os.environ.get(OUTSIDE + name, os.environ.get(name, "")).strip()


def read_api_key(name: str) -> str:
    """Return the API key in an environment variable, or "".

    Raises:
        ConfigError: An HTTP header cannot carry the key; clients would fail with an unclear error.
    """
    key = read_outside_variable(name)
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"The API key in the variable {name} contains a character that an HTTP header cannot carry.",
            where=f"the environment variable {name}",
            expected="ASCII letters, digits and punctuation on one line",
            do="copy the key again, without typographic quotes or dashes that an editor inserted",
        )
    return key


class OtherServer(NamedTuple):
    """An OpenAI-compatible server of models other than the trained one, and the API keys to try."""

    base_url: str
    keys: tuple[str, ...]
    """Keys in the order of trial."""


def find_other_server() -> OtherServer:
    """Return the server for judges and for other models in a run, by environment variables.

    DASHSCOPE_API_KEY and DASHSCOPE_API_KEY_BACKUP (several keys separated by `|`) choose DASHSCOPE_BASE_URL or
    DashScope; otherwise OPENAI_BASE_URL and OPENAI_API_KEY count.

    Raises:
        UserError: No server is named, or a key is invalid.
    """

    def keys_of(name: str) -> tuple[str, ...]:
        return tuple(key.strip() for key in read_api_key(name).split("|") if key.strip())

    keys = keys_of("DASHSCOPE_API_KEY") + keys_of("DASHSCOPE_API_KEY_BACKUP")
    if keys:
        return OtherServer(read_outside_variable("DASHSCOPE_BASE_URL") or DASHSCOPE, keys)
    base, api_keys = read_outside_variable("OPENAI_BASE_URL"), keys_of("OPENAI_API_KEY")
    if base or api_keys:
        # Clients refuse to start without a key, and local servers ignore it.
        return OtherServer(base or OPENAI, api_keys or ("none",))
    raise UserError(
        "The configuration uses a model on another server, but no environment variable gives the server's address.",
        where="DASHSCOPE_API_KEY, or OPENAI_BASE_URL and OPENAI_API_KEY",
        expected="base URL and API key of an OpenAI-compatible server",
        do="export OPENAI_BASE_URL=http://HOST:PORT/v1 OPENAI_API_KEY=…, or put both into .env next to the YAML",
    )

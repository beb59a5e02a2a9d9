"""Where models of other servers are asked: by judges, and by agents that play opponents.

Invariant: the address and the keys are those of the environment that the run was started in, also where an attempt's
own environment names the gateway instead (rollout.isolation: process, sandbox).
"""

from __future__ import annotations

import os
from typing import NamedTuple

from ajet.schema.errors import ConfigError, UserError

OUTSIDE = "AJET_OUTSIDE_"
"""Before the name of a variable: what it was in the run's environment."""
DASHSCOPE = "https://dashscope.aliyuncs.com/compatible-mode/v1"
OPENAI = "https://api.openai.com/v1"


def read_outside_variable(name: str) -> str:
    """A variable as it was in the environment that the run was started in; "" for none. Without spaces or line ends
    around it: a client refuses a key that ends in one, in words that hold the key."""
    return os.environ.get(OUTSIDE + name, os.environ.get(name, "")).strip()


def read_api_key(name: str) -> str:
    """The key that a variable holds; "" for none. Raises ConfigError for one that a header cannot carry: clients
    refuse it with an error of their own, or take it apart where nobody looks."""
    key = read_outside_variable(name)
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"The key in {name} holds a character that no request can carry.",
            where=f"the environment variable {name}",
            expected="ASCII letters, digits and signs on one line",
            do="copy it again, without quotes and dashes that an editor changed",
        )
    return key


class OtherServer(NamedTuple):
    """An OpenAI-compatible server."""

    base_url: str
    keys: tuple[str, ...]
    """To be tried in this order."""


def find_other_server() -> OtherServer:
    """The server of DASHSCOPE_API_KEY (and DASHSCOPE_API_KEY_BACKUP; several keys with `|` between them), at
    DASHSCOPE_BASE_URL or DashScope's own; else of OPENAI_BASE_URL and OPENAI_API_KEY. Raises UserError where neither is
    set, and for a key that is none."""

    def keys_of(name: str) -> tuple[str, ...]:
        return tuple(key.strip() for key in read_api_key(name).split("|") if key.strip())

    keys = keys_of("DASHSCOPE_API_KEY") + keys_of("DASHSCOPE_API_KEY_BACKUP")
    if keys:
        return OtherServer(read_outside_variable("DASHSCOPE_BASE_URL") or DASHSCOPE, keys)
    base, own = read_outside_variable("OPENAI_BASE_URL"), keys_of("OPENAI_API_KEY")
    if base or own:
        return OtherServer(base or OPENAI, own or ("none",))
    raise UserError(
        "A model of another server is asked for, and the environment names no server.",
        where="DASHSCOPE_API_KEY, or OPENAI_BASE_URL and OPENAI_API_KEY",
        expected="the address and the key of any server that speaks OpenAI's protocol",
        do="export OPENAI_BASE_URL=http://HOST:PORT/v1 OPENAI_API_KEY=…, or put both into .env beside the YAML",
    )

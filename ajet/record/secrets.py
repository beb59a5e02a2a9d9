"""Secrets stay out of everything that is written (DESIGN decision 16).

Invariant: every file of a run directory passes through one `Redactor`; it knows the values of those environment
variables whose name says that they are secret, and the literal secrets of the configuration.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import SecretStr

NAMES = re.compile(r"(^|_)(API_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASSWORDS?|PASSWD|CREDENTIALS?)($|_)", re.IGNORECASE)
"""Names of variables and of configuration keys that hold secrets."""
SHORTEST = 8
"""Shorter values are no secrets worth the name, and would blot out ordinary words."""


class Redactor:
    """Replaces secrets in text by the name of the variable they came from."""

    def __init__(self, environment: Mapping[str, str] | None = None, literals: Iterable[tuple[str, str]] = ()) -> None:
        found = dict[str, str]()
        named = (os.environ if environment is None else environment).items()
        for name, value in [*literals, *named]:
            if NAMES.search(name) and _is_secret(value):
                for form in {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}:
                    found[form] = f"[redacted {name}]"
        self._found = found
        self._environment = {name for name, _ in named}
        longest_first = sorted(found, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if found else None

    def __call__(self, text: str) -> str:
        """`text` without secrets."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._found[match.group()], text)

    def interpolated(self, text: str) -> str:
        """`text` with secrets of the environment as `${oc.env:NAME}`, so that a configuration still loads."""
        if self._pattern is None:
            return text

        def reference(match: re.Match[str]) -> str:
            name = self._found[match.group()].removeprefix("[redacted ").removesuffix("]")
            return f"${{oc.env:{name}}}" if name in self._environment else self._found[match.group()]

        return self._pattern.sub(reference, text)


def literal_secrets(tree: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """(key, value) of every string in a configuration whose key says that it is secret (`api_key: sk-…`)."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from literal_secrets(value, str(key))
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from literal_secrets(value, name)
    else:
        value = tree.get_secret_value() if isinstance(tree, SecretStr) else tree
        if isinstance(value, str) and NAMES.search(name) and "${" not in value and not name.endswith("_env"):
            yield name, value


def _is_secret(value: str) -> bool:
    return len(value) >= SHORTEST and not value.isdigit() and not os.path.exists(value)

"""Redacts secrets from all written text (DESIGN decision 16); `ajet.schema.secrets` defines a secret.

Invariant: every file of a run directory passes one `Redactor`. Redacted are texts with a secret's shape (user
information of URLs, keys of known services) and values of secret names in the environment or configuration. In rows
only string values change, never keys or ajet's own words such as a status.

A value is searched only if unmistakable: at least 8 characters, no number, no existing path, no single word (letters of
one case, shorter than 16). A secret `completed` would redact the word in every text.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import SecretStr

from ajet.record.plain_json import dumps
from ajet.schema.secrets import has_secret_shape, is_secret_name, list_secret_parts, replace_secret_shapes

SHORTEST = 8
"""Minimum characters of a searched secret; shorter ones would redact ordinary words."""
SHAPE = "[redacted secret]"
"""Stands for a secret that no variable or key names."""
_ONE_WORD = re.compile(r"[A-Za-z]?[a-z]{1,14}|[A-Z]{1,15}")
_OWN_WORDS = {
    "status",
    "split",
    "role",
    "type",
    "kind",
    "phase",
    "outcome",
    "finish",
    "finish_reason",
    "fork",
    "reason",
}
_OWN_WORDS |= {"boundary", "agent", "target", "name"}
"""Keys under which ajet and the protocols of models have words of a fixed list."""
_WORD_OF_A_LIST = re.compile(r"[a-z][a-z_]*")


class Redactor:
    """Replaces secrets by the name of their variable or key."""

    def __init__(self, environment: Mapping[str, str] | None = None, literals: Iterable[tuple[str, str]] = ()) -> None:
        replacements, interpolations = dict[str, str](), dict[str, str]()
        variables = os.environ if environment is None else environment
        for name, value in [*literals, *variables.items()]:
            for secret in _secret_texts(name, value):
                for form in _json_forms(secret):
                    replacements[form] = f"[redacted {name}]"
                if name in variables and secret == variables[name]:
                    interpolations[secret] = f"${{oc.env:{name}}}"
        self._replacements = replacements
        self._interpolations = interpolations
        self._longest_first = sorted(replacements, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._longest_first:
            if secret in text:
                text = text.replace(secret, self._replacements[secret])
        return replace_secret_shapes(text, SHAPE)

    def row(self, row: Any) -> str:
        """Return `row` as one line of strict JSON with redacted string values."""
        line = dumps(row)
        return line if not self._has_secret(line) else dumps(self._redact_value(json.loads(line)))

    def tree(self, value: Any) -> Any:
        """Return a value of dicts, lists and plain values with redacted strings."""
        return self._redact_value(value)

    def interpolated(self, text: str) -> str:
        """Return the text with secrets of the environment replaced by `${oc.env:NAME}`, so that a configuration still
        loads.
        """
        for secret in self._longest_first:
            if secret in text:
                text = text.replace(secret, self._interpolations.get(secret, self._replacements[secret]))
        return text

    def _redact_value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            is_own_word = key in _OWN_WORDS and _WORD_OF_A_LIST.fullmatch(value)
            return value if is_own_word else self(value)
        if isinstance(value, Mapping):
            return {name: self._redact_value(item, str(name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._redact_value(item, key) for item in value]
        return value

    def _has_secret(self, line: str) -> bool:
        return any(secret in line for secret in self._replacements) or has_secret_shape(line)


SHAPES_ONLY = Redactor({})  # knows no values


def literal_secrets(tree: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, value) of every string with a secret's key or shape in a configuration (`api_key: sk-…`)."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from literal_secrets(value, str(key))
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from literal_secrets(value, name)
    else:
        value = tree.get_secret_value() if isinstance(tree, SecretStr) else tree
        if isinstance(value, str) and "${" not in value and (is_secret_name(name) or has_secret_shape(value)):
            yield name, value


def _secret_texts(name: str, value: str) -> list[str]:
    """Return the texts to redact for a variable or key."""
    values = [value.strip()] if is_secret_name(name) else []
    inside = list_secret_parts(value) if values or has_secret_shape(value) else []
    return [secret for secret in [*values, *inside] if _is_unmistakable(secret)]


def _is_unmistakable(value: str) -> bool:
    if len(value) < SHORTEST or value.isdigit() or _ONE_WORD.fullmatch(value):
        return False
    return not os.path.exists(value)


def _json_forms(secret: str) -> set[str]:
    """Return the secret as plain text, as JSON, and as JSON within JSON."""
    forms = {secret}
    for ascii_only in (True, False):
        once = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        forms |= {once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
    return forms

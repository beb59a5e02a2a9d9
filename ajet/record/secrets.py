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
    """Replaces secrets in text by `[redacted NAME]`, with the name of the variable or key that holds them."""

    def __init__(self, environment: Mapping[str, str] | None = None, literals: Iterable[tuple[str, str]] = ()) -> None:
        """Args:
        environment: Variables whose values may be secrets. None: those of this process.
        literals: (name, value) of the secrets in a configuration.
        """
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
        """Return a row of a record as one line of strict JSON, with secrets redacted in its string values."""
        line = dumps(row)
        return line if not self._has_secret(line) else dumps(self._redact_value(json.loads(line)))

    def tree(self, value: Any) -> Any:
        """Return a copy of a value of dicts, lists and plain values, with secrets redacted in its strings."""
        return self._redact_value(value)

    def interpolated(self, text: str) -> str:
        """Return a YAML text with each secret of the environment replaced by `${oc.env:NAME}`.

        The recorded configuration can then be loaded again.
        """
        for secret in self._longest_first:
            if secret in text:
                text = text.replace(secret, self._interpolations.get(secret, self._replacements[secret]))
        return text

    def _redact_value(self, value: Any, key: str = "") -> Any:
        """Return the value with redacted strings. Words of a fixed list, such as a status, stay under their own keys.

        Args:
            key: The key under which the value stands.
        """
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
    """Yield (key, value) of each secret that a configuration contains literally, such as `api_key: sk-…`.

    Values with an interpolation (`${…}`) are no literals.
    """
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
    """Return the texts to redact for a variable or key: its value if the name is a secret's, and secrets within it."""
    named_values = [value.strip()] if is_secret_name(name) else []
    contained_secrets = list_secret_parts(value) if named_values or has_secret_shape(value) else []
    return [secret for secret in [*named_values, *contained_secrets] if _is_unmistakable(secret)]


def _is_unmistakable(value: str) -> bool:
    """Return True if a secret may be searched for in all text: it is no short text, number, single word or path."""
    if len(value) < SHORTEST or value.isdigit() or _ONE_WORD.fullmatch(value):
        return False
    return not os.path.exists(value)


def _json_forms(secret: str) -> set[str]:
    """Return the forms in which a secret occurs in a record: plain, inside JSON, and inside JSON within JSON."""
    forms = {secret}
    for ascii_only in (True, False):
        once = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        forms |= {once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
    return forms

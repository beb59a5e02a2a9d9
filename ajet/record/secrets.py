"""Secrets stay out of everything that is written (DESIGN decision 16); what is one, `ajet.schema.secrets` says.

Invariant: every file of a run directory passes through one `Redactor`. It hides what shows itself by its shape (user
information of URLs, keys of known services) and the values that lie under the name of a secret, in the environment or
in the configuration. Of rows it changes string values only: never a key, nor a word of ajet's own such as a status.

A value is searched for only if it can't be mistaken for ordinary text: 8 characters at least, no number, no path that
exists, and no single word (letters of one case, shorter than 16: `completed` is nobody's secret, and would blot out
the same word everywhere).
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
"""Characters; shorter values are no secrets worth the name, and would blot out ordinary words."""
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
    """Replaces secrets by the name of the variable or key that they came from."""

    def __init__(self, environment: Mapping[str, str] | None = None, literals: Iterable[tuple[str, str]] = ()) -> None:
        found, interpolations = dict[str, str](), dict[str, str]()
        named = os.environ if environment is None else environment
        for name, value in [*literals, *named.items()]:
            for secret in _secret_texts(name, value):
                for form in _json_forms(secret):
                    found[form] = f"[redacted {name}]"
                if name in named and secret == named[name]:
                    interpolations[secret] = f"${{oc.env:{name}}}"
        self._replacements = found
        self._interpolations = interpolations
        self._longest_first = sorted(found, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self._longest_first:
            if secret in text:
                text = text.replace(secret, self._replacements[secret])
        return replace_secret_shapes(text, SHAPE)

    def row(self, row: Any) -> str:
        """One line of strict JSON in which the string values of `row` have no secrets."""
        line = dumps(row)
        return line if not self._has_secret(line) else dumps(self._redact_value(json.loads(line)))

    def tree(self, value: Any) -> Any:
        """`value` (dicts, lists, plain values) with string values without secrets."""
        return self._redact_value(value)

    def interpolated(self, text: str) -> str:
        """`text` with secrets of the environment as `${oc.env:NAME}`, so that a configuration still loads."""
        for secret in self._longest_first:
            if secret in text:
                text = text.replace(secret, self._interpolations.get(secret, self._replacements[secret]))
        return text

    def _redact_value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            own = key in _OWN_WORDS and _WORD_OF_A_LIST.fullmatch(value)
            return value if own else self(value)
        if isinstance(value, Mapping):
            return {name: self._redact_value(item, str(name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._redact_value(item, key) for item in value]
        return value

    def _has_secret(self, line: str) -> bool:
        return any(secret in line for secret in self._replacements) or has_secret_shape(line)


SHAPES_ONLY = Redactor({})
"""Knows no values."""


def literal_secrets(tree: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """(key, value) of every string in a configuration whose key says that it is secret (`api_key: sk-…`)."""
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
    """The texts to look for, of what lies under this name."""
    values = [value.strip()] if is_secret_name(name) else []
    inside = list_secret_parts(value) if values or has_secret_shape(value) else []
    return [secret for secret in [*values, *inside] if _is_unmistakable(secret)]


def _is_unmistakable(value: str) -> bool:
    """See the module's docstring."""
    if len(value) < SHORTEST or value.isdigit() or _ONE_WORD.fullmatch(value):
        return False
    return not os.path.exists(value)


def _json_forms(secret: str) -> set[str]:
    """The secret as it is, as it reads in JSON, and in JSON that is a text of JSON."""
    forms = {secret}
    for ascii_only in (True, False):
        once = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        forms |= {once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
    return forms

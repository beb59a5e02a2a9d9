"""The keys that a request bears, taken out of what is kept of it and of its reply.

Invariant: what lies in a header or in the query under the name of a secret (`ajet.schema.secrets`; `key`, as Google
calls it, too) is in nothing that is kept, as far as it cannot be mistaken for an ordinary word: a client that needs no
key sends `anything`, and means no key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

from ajet.record.secrets import Redactor
from ajet.schema.secrets import is_secret_name

_NAME = "api_key"


class Hidden:
    """Hides what one request asks to be hidden."""

    def __init__(self, headers: Mapping[bytes, bytes], query: bytes = b"") -> None:
        self._redactor = Redactor({}, [(_NAME, key) for key in _offered(headers, query)])

    def text(self, text: str) -> str:
        """Without keys."""
        return self._redactor(text)

    def tree(self, value: Any) -> Any:
        """A value of JSON, in whole letters, without what is hidden."""
        return self._redactor.tree(value)


def _offered(headers: Mapping[bytes, bytes], query: bytes) -> Iterator[str]:
    for name, value in headers.items():
        said = value.decode("latin-1").strip()
        if name == b"cookie":
            yield from (each.partition("=")[2].strip() for each in said.split(";"))
        elif is_secret_name(name.decode("latin-1")):
            yield said.rpartition(" ")[2]
    for named, asked in parse_qsl(query.decode("latin-1")):
        if named == "key" or is_secret_name(named):
            yield asked

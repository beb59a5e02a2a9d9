"""View: the composed config for the user's code.

Invariant: read-only. `config.frozen_lake.frozen_lake_size`, `config["frozen_lake"]` and `config.get("x", default)`
work; a key with the name of a mapping's method (`items`) needs brackets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any


class View(Mapping[str, Any]):
    """The configuration as user code sees it: a read-only mapping whose keys are also attributes."""

    __slots__ = ("_tree",)

    def __init__(self, tree: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_tree", dict(tree))

    def __getitem__(self, name: str) -> Any:
        return _wrap_value(self._tree[name])

    def __getattr__(self, name: str) -> Any:
        """Return the value of a key. Raise AttributeError with a similar or all keys for an unknown one."""
        if name.startswith("__") or name == "_tree":  # copy and pickle ask for these before the object is complete
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            similar = get_close_matches(name, map(str, self._tree), 1)
            hint = (
                f"; did you mean {similar[0]!r}?"
                if similar
                else f"; the keys there are {', '.join(map(str, self._tree))}"
            )
            raise AttributeError(f"the config has no key {name!r} here{hint}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("the config is read-only")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    def __len__(self) -> int:
        return len(self._tree)

    def __repr__(self) -> str:
        return f"View({self._tree!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how pickle rebuilds the view, since `__setattr__` is refused."""
        return View, (self._tree,)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy as plain dicts and lists, which may be changed."""
        return {name: _copy_plain(value) for name, value in self._tree.items()}


def _wrap_value(value: Any) -> Any:
    """Return the value with mappings as views, also within lists."""
    if isinstance(value, Mapping):
        return value if isinstance(value, View) else View(value)
    if isinstance(value, (list, tuple)):
        return [_wrap_value(item) for item in value]
    return value


def _copy_plain(value: Any) -> Any:
    """Return a copy of the value with mappings and sequences as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {name: _copy_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy_plain(item) for item in value]
    return value

"""The text of the generated page of errors: exit codes, user errors, failures of an episode.

Invariant: a class of the two families is on the page with its own docstring and attributes, wherever it is defined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from ajet.cli.exit import EXIT_CODES
from ajet.schema.errors import BoundaryError, UserError

_CLASS = re.compile(r"^class (\w+)\(([\w, .]+)\):", re.M)
_HEAD = """\
# Errors

<!-- Generated from the classes of errors by `make docs`; change their docstrings. -->

## Exit codes

| Code | Meaning |
|---|---|
"""
_USER = """
## User errors

You can fix these. A command shows one screen: what happened, where, what was expected, what to do. In Python all derive
from `ajet.schema.errors.UserError`, with the attributes `what`, `where`, `expected` and `do`.

| Class | Meaning | Exit code |
|---|---|---|
"""
_FAILURES = """
## Failures of an episode

They end one attempt, never the run. [Failures](../failures.md) says what follows. All derive from
`ajet.schema.errors.BoundaryError`; the boundary is the part that failed.

| Class | Meaning | Boundary | Retried |
|---|---|---|---|
"""


def errors_md(root: Path) -> str:
    """Return the page: the exit codes, then each class of the two families."""
    classes = list(_load_classes(root, {"UserError", "BoundaryError"}))
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES]
    user = [
        f"| `{_spell(each)}` | {_first_paragraph(each)} | {each.exit_code} |"
        for each in classes
        if issubclass(each, UserError)
    ]
    failures = [
        f"| `{_spell(each)}` | {_first_paragraph(each)} | {each.boundary} | {'yes' if each.retryable else 'no'} |"
        for each in classes
        if issubclass(each, BoundaryError) and each is not BoundaryError
    ]
    return _HEAD + "\n".join([*codes, _USER.rstrip("\n"), *user, _FAILURES.rstrip("\n"), *failures]) + "\n"


def _load_classes(root: Path, family: set[str]) -> Iterator[type[Exception]]:
    """Yield the named classes and all that derive from them, in the order of their modules."""
    found: dict[str, tuple[str, set[str]]] = {}
    for folder in ("ajet", "plugins"):
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root / ("" if folder == "ajet" else folder)).with_suffix("").parts
            if "tests" not in parts:
                for name, bases in _CLASS.findall(file.read_text(encoding="utf-8")):
                    found[name] = (".".join(parts).removesuffix(".__init__"), set(re.findall(r"\w+", bases)))
    while more := {name for name, (_, bases) in found.items() if bases & family} - family:
        family = family | more
    for name, (module, _) in found.items():
        if name in family:
            yield getattr(import_module(module), name)


def _spell(error: type[Exception]) -> str:
    return f"{error.__module__}.{error.__qualname__}"


def _first_paragraph(error: type[Exception]) -> str:
    """Return the first paragraph of the docstring on one line."""
    paragraph = (error.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")

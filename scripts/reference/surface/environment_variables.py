"""The environment variables that the product reads, or passes on to the programs that it starts.

Their source is the code itself: each text there that has the form of a variable's name, less the few of
`_OTHER_CAPITALS`, so a new one cannot be forgotten. The variables of GAIA's servers, whose names are composed, come
from their table, and those of YAML layers from `${oc.env:NAME}`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ajet_gaia.catalogue import SERVERS

_FOLDERS = ("ajet", "plugins", "train", "env")
_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+_?")
_CANDIDATE = re.compile(r"environ|getenv|(?<=[\"'\s])[A-Z][A-Z0-9]*_[A-Z0-9_]*(?=[\"']|\s(?! *[=+|*/-]))")
"""A file without this has none; parsing all files would take two seconds."""
_INTERPOLATED = re.compile(r"\$\{oc\.env:(\w+)")
_OTHER_CAPITALS = {
    *("CAP_SETUID", "CAP_SETGID", "PR_SET_CHILD_SUBREAPER", "PR_SET_PDEATHSIG", "SC_CLK_TCK", "SC_PAGE_SIZE"),
    *("CAUSAL_LM", "RUN_OR_EPISODE", "RUN_OR_YAML", "VALIDATION_ERROR"),
    *("INVALID_ARGUMENT", "PERMISSION_DENIED", "NOT_FOUND", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"),
    *("MAX_TOKENS", "MALFORMED_FUNCTION_CALL", "TYPE_UNSPECIFIED", "MODE_UNSPECIFIED"),
    *("API_KEY", "BASE_URL", "MODEL_NAME"),  # ends of names that the table of GAIA's servers composes
}
"""Names of Linux, of libraries' and protocols' values and of arguments, which are not variables of the environment."""


def list_environment_variables(root: Path) -> Iterator[str]:
    """Yield the names; one that ends in `_` or `*` begins several."""
    for folder in _FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            is_test = "tests" in file.relative_to(root).parts
            if not is_test and _CANDIDATE.search(text := file.read_text(encoding="utf-8")):
                yield from _list_in_code(ast.parse(text))
    for server in SERVERS:
        yield from (*server.variables, *server.some_tools, *server.passed)
    for file in sorted((root / "default_config").rglob("*.y*ml")):
        yield from _INTERPOLATED.findall(file.read_text(encoding="utf-8"))


def _list_in_code(tree: ast.Module) -> Iterator[str]:
    exported = {
        id(element)
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets)
        for element in ast.walk(node.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in exported:
            words = node.value.split()
            if all(word.isidentifier() for word in words):  # one name, or a list to be split
                yield from (word for word in words if _NAME.fullmatch(word) and word not in _OTHER_CAPITALS)
        elif isinstance(node, ast.Subscript) and _is_environ(node.value):
            yield from _list_text(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if _is_environ(node.func.value) or node.func.attr == "getenv":
                yield from _list_text(node.args[0])
        elif isinstance(node, ast.Compare) and any(_is_environ(each) for each in node.comparators):
            yield from _list_text(node.left)


def _is_environ(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def _list_text(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value

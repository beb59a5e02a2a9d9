"""Document: a parsed YAML file that knows line and column of every key and value.

Invariant: each path of the tree has a `NodePlace`, so every later error can name file:line:column. Scalars are read as
in OmegaConf (1e-6 is a number, dates are text). Duplicate keys are errors. The size of the values is bounded before
construction, counting an alias at each occurrence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ajet.config.locations import find_tutorials
from ajet.schema.errors import ConfigError

KeyPath = tuple[Any, ...]
"""Keys and list indices from the root down."""
MAX_NODES = 200_000
"""Limit on keys and values of a document, counting an alias at each occurrence."""
MAX_DEPTH = 100
"""Limit on nested mappings and lists."""
MAX_NUMBER_CHARS = 400
"""Limit on the characters of a number."""


class NodePlace(NamedTuple):
    """Line and column of a value, both from 1, and its start and end offsets in the text."""

    line: int
    column: int
    value_line: int
    value_column: int
    start: int
    end: int


@dataclass(frozen=True)
class Document:
    """A parsed YAML file with the place of each key."""

    path: Path
    text: str
    tree: dict[Any, Any]
    places: dict[KeyPath, NodePlace] = field(repr=False)
    from_python: bool = False
    """True if a program passed the settings without a file at the path."""
    base_document: Document | None = None
    """The file loaded by the program, if any."""

    def locate(self, path: KeyPath, *, value: bool = False) -> str:
        """Return file:line:column of a key, or of the nearest section around it that has a place.

        Settings that a program passed have no file, except those unchanged from the file that the program loaded.

        Args:
            value: True for the place of the value instead of the key's.
        """
        if self.from_python:
            if (
                self.base_document is not None
                and path in self.base_document.places
                and self.base_document.get_value(path) == self.get_value(path)
            ):
                return self.base_document.locate(path, value=value)
            return f"{'.'.join(map(str, path)) or 'settings'}, as given in Python"
        while path and path not in self.places:
            path = path[:-1]
        place = self.places.get(path)
        if place is None:
            return str(self.path)
        line, column = (place.value_line, place.value_column) if value else (place.line, place.column)
        return f"{self.path}:{line}:{column}"

    def get_value(self, path: KeyPath) -> Any:
        """Return the value at a path of keys and list indices, or None if there is none."""
        node: Any = self.tree
        for part in path:
            if not (isinstance(node, list) and isinstance(part, int)) and not isinstance(node, dict):
                return None
            node = node.get(part) if isinstance(node, dict) else node[part] if part < len(node) else None
        return node


def read_document(path: Path) -> Document:
    """Read and parse a YAML file.

    Raises:
        ConfigError: The file is missing or unreadable, has a syntax error or a duplicate key, or its root is no
            mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"The file {path} does not exist.",
            where=str(path.absolute()),
            do=_suggest_path(path) or "fix the path after --conf",
        ) from None
    except IsADirectoryError:
        yaml_files = ", ".join(str(file) for file in sorted(path.glob("*.y*ml"))[:8])
        raise ConfigError(
            f"{path} is a folder, not a YAML file.",
            where=str(path.absolute()),
            do=f"give the path of the YAML in it: {yaml_files or 'the folder contains none'}",
        ) from None
    except NotADirectoryError:
        raise ConfigError(
            f"The file {path} does not exist.", where=str(path.absolute()), do="correct the path"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}.",
            where=str(path),
            do="save it as UTF-8 in your editor",
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", where=str(path)) from error
    return parse_document(text, path)


def parse_document(text: str, path: Path) -> Document:
    """Parse the text of a YAML file.

    Args:
        path: The file, for error messages.

    Raises:
        ConfigError: The text has a syntax error or a duplicate key, is too large, or its root is no mapping.
    """
    loader = _YamlLoader(text)
    places: dict[KeyPath, NodePlace] = {}
    try:
        root = loader.get_single_node()
        if root is None:
            return Document(path, text, {}, places)
        _count_nodes(root, {}, set(), 0)
        _record_places(root, (), places, path, set())
        tree = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        do = _advise_on_script(path, text) or _advise_on_syntax(error, text)
        raise ConfigError(
            f"The file is not valid YAML: {error.problem or error.context}.", where=location, do=do
        ) from error
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        # PyYAML does not wrap the errors of converting a text by a tag such as !!int or !!bool.
        raise ConfigError(f"The file is not valid YAML: {str(error)[:300]}", where=str(path)) from error
    finally:
        loader.dispose()
    if not isinstance(tree, dict):
        raise ConfigError(
            f"The top level of the YAML is a {type(tree).__name__}, not a mapping.",
            where=f"{path}:1:1",
            expected="the key `ajet:` and the keys below it",
            do=_advise_on_script(path, text),
        )
    return Document(path, text, tree, places)


class _YamlLoader(yaml.SafeLoader):
    """Reads YAML scalars as OmegaConf does (1e-6 is a number, a date is text), with limits on size and depth."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._node_count = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node as PyYAML does. Raise an error for too many or too deeply nested nodes."""
        self._node_count += 1
        self._depth += 1
        if self._node_count > MAX_NODES or self._depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=_EXCESSIVE, problem_mark=self.peek_event().start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Parse a number. Refuse long digit strings, because their conversion would take minutes."""
        if len(node.value) > MAX_NUMBER_CHARS:
            raise yaml.MarkedYAMLError(problem="a number is too long", problem_mark=node.start_mark)
        if node.tag.endswith(":int"):
            return self.construct_yaml_int(node)
        return self.construct_yaml_float(node)


_PLACEHOLDER = "`{{…}}` is a placeholder of a template that was not filled in"
_EXCESSIVE = f"more than {MAX_NODES:,} values (aliases counted each time), or nested deeper than {MAX_DEPTH} levels"
_YamlLoader.add_constructor("tag:yaml.org,2002:int", _YamlLoader.construct_number)
_YamlLoader.add_constructor("tag:yaml.org,2002:float", _YamlLoader.construct_number)


_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in ("tag:yaml.org,2002:timestamp",)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
        |\.[0-9_]+(?:[eE][-+][0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
        re.X,
    ),
    list("-+0123456789."),
)


def _count_nodes(
    node: yaml.Node, known: dict[int, tuple[int, int]], open_nodes: set[int], depth: int
) -> tuple[int, int]:
    """Return (number of values, depth) below a YAML node, and visit each node once.

    Raises ConfigError for too many values, and for anchors that contain themselves.

    Args:
        known: results of visited nodes.
        open_nodes: nodes that contain this one.
    """
    if id(node) in known:
        return known[id(node)]
    if id(node) in open_nodes:
        raise yaml.MarkedYAMLError(problem="an anchor contains itself", problem_mark=node.start_mark)
    open_nodes.add(id(node))
    value_count = max_depth = 1
    children: list[Any] = []
    if isinstance(node, yaml.MappingNode):
        children = [entry for pair in node.value for entry in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    for child in children:
        child_values, child_depth = _count_nodes(child, known, open_nodes, depth + 1)
        value_count, max_depth = value_count + child_values, max(max_depth, child_depth + 1)
        if value_count > MAX_NODES or depth + max_depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=_EXCESSIVE, problem_mark=child.start_mark)
    open_nodes.discard(id(node))
    known[id(node)] = value_count, max_depth
    return value_count, max_depth


def _record_places(
    node: yaml.Node, key_path: KeyPath, places: dict[KeyPath, NodePlace], path: Path, open_nodes: set[int]
) -> None:
    """Record the place of each node below `node`. Refuse duplicate keys and self-containing anchors."""
    if id(node) in open_nodes:
        raise yaml.MarkedYAMLError(problem="an anchor contains itself", problem_mark=node.start_mark)
    open_nodes.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen_names: set[Any] = set()
        # Keys merged by `<<` come first, so that the mapping's own keys replace their places.
        for key, value in sorted(node.value, key=lambda pair: pair[0].tag != "tag:yaml.org,2002:merge"):
            if key.tag == "tag:yaml.org,2002:merge":
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    _record_places(source, key_path, places, path, open_nodes)
                continue
            if not isinstance(key, yaml.ScalarNode):
                is_placeholder = isinstance(key, yaml.MappingNode) and [entry[1].value for entry in key.value] == [""]
                problem = _PLACEHOLDER if is_placeholder else "a key must be a string"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            name = _construct_scalar(key)
            if name in seen_names:
                raise yaml.MarkedYAMLError(problem=f"the key {name!r} occurs twice", problem_mark=key.start_mark)
            seen_names.add(name)
            places[(*key_path, name)] = _make_place(key, value)
            _record_places(value, (*key_path, name), places, path, open_nodes)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            places[(*key_path, index)] = _make_place(item, item)
            _record_places(item, (*key_path, index), places, path, open_nodes)
    open_nodes.discard(id(node))


def _construct_scalar(node: yaml.Node) -> Any:
    """Return the Python value of a scalar node, such as a number for `1e-6`."""
    loader = _YamlLoader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()


def _make_place(key: yaml.Node, value: yaml.Node) -> NodePlace:
    """Return line, column and offsets of a key and its value. A list item is its own key."""
    first, start = key.start_mark, value.start_mark
    return NodePlace(
        first.line + 1, first.column + 1, start.line + 1, start.column + 1, start.index, value.end_mark.index
    )


def _advise_on_syntax(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return what to do about a syntax error, judged by PyYAML's message."""
    if error.problem == _EXCESSIVE:
        return "put the data into a separate file"
    if error.problem == _PLACEHOLDER:
        return "replace the placeholder by the value"
    if "\t" in text and "\\t" in str(error.problem):
        return "indent with spaces; YAML allows no tabs"
    if "occurs twice" in str(error.problem):
        return "delete one of the two; YAML would silently use the later one"
    if "mapping values are not allowed" in str(error.problem):
        return "look for missing indentation, or quote the value that contains a colon"
    return "correct the syntax there (indentation, quotes, colons)"


def _suggest_path(path: Path) -> str:
    """Return advice on a YAML path that does not exist, or "".

    Tried are a similar name in the same folder, a path that begins with the present folder's name, and ajet's
    tutorials.
    """
    from difflib import get_close_matches

    names = {file.stem: file.name for file in path.parent.glob("*.y*ml")} if path.parent.is_dir() else {}
    similar = get_close_matches(path.stem, names, 1)  # without the suffix, which makes all names similar
    if similar:
        return f"did you mean {path.parent / names[similar[0]]}?"
    path_inside = Path(*path.parts[1:])
    if path.parts[:1] == (Path.cwd().name,) and path_inside.is_file():
        return f"you are inside {path.parts[0]}: run `cd ..` first, or write the path {path_inside}"
    shipped_tutorial = find_tutorials().parent / path
    return (
        f"the one that comes with ajet is {shipped_tutorial}"
        if path.parts[:1] == ("tutorial",) and shipped_tutorial.is_file()
        else ""
    )


class _YamlDumper(yaml.SafeDumper):
    """Writes YAML that `_YamlLoader` reads as equal values: quotes text that would be read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: equal values are written out each time instead of as anchors and aliases."""
        return True


_YamlDumper.yaml_implicit_resolvers = _YamlLoader.yaml_implicit_resolvers
_YamlDumper.add_multi_representer(Path, lambda dumper, path: dumper.represent_str(str(path)))
_YamlDumper.add_representer(tuple, lambda dumper, items: dumper.represent_list(items))


def dump_yaml(tree: Any) -> str:
    """Return a tree of settings as YAML text, which `parse_document` reads as equal values."""
    return yaml.dump(tree, Dumper=_YamlDumper, sort_keys=False, allow_unicode=True, width=120)


def _advise_on_script(path: Path, text: str) -> str:
    """Return advice for a shell script of overrides, or "" for any other file."""
    if path.suffix not in (".sh", ".bash") and not text.startswith("#!"):
        return ""
    return (
        "give the script's overrides as arguments, --conf FILE.yaml trainer.total_epochs=3 …, or write them as YAML "
        "(docs/coming_from_verl.md)"
    )


def list_leaves(tree: Any, path: KeyPath = ()) -> list[tuple[KeyPath, Any]]:
    """Return (path, value) of every value in nested mappings and lists that is neither of them."""
    if isinstance(tree, dict):
        return [leaf for name, value in tree.items() for leaf in list_leaves(value, (*path, name))]
    if isinstance(tree, list):
        return [leaf for index, value in enumerate(tree) for leaf in list_leaves(value, (*path, index))]
    return [(path, tree)]

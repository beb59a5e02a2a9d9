"""Finds the statements of the user's files that a class or function reaches, and prompt files they name.

Invariant: source is read, not imported or run. Comments, layout and unreached statements do not count. Files of Python,
installed packages and ajet are not followed. A module whose names cannot all be seen in its source counts completely.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import symtable
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ajet.config.plugins import start_plugins
from ajet.config.references import is_library_file

PROMPT_SUFFIXES = {".txt", ".md", ".j2", ".jinja", ".jinja2", ".prompt", ".tmpl", ".mustache", ".yaml", ".yml", ".toml"}
"""Suffixes of text files read, but not written, by code."""
_LONGEST_NAME = 200
_HIDDEN_BINDINGS = {"globals", "exec", "eval", "setattr", "__getattr__"}
_Target = tuple[Path, str | None]
"""A file and a name in the file. None: the complete file."""


@dataclass(frozen=True)
class Statement:
    """A top-level statement of a module."""

    node: ast.stmt

    @cached_property
    def text(self) -> str:
        """The statement without comments and layout."""
        return ast.unparse(self.node)

    @cached_property
    def _symbol_tables(self) -> list[symtable.SymbolTable]:
        tables = [symtable.symtable(self.text, "statement", "exec")]
        for table in tables:
            tables += table.get_children()
        return tables

    @cached_property
    def binds(self) -> set[str]:
        """Names of the module bound by the statement."""
        top, *nested = self._symbol_tables
        bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
        return bound | {
            symbol.get_name()
            for t in nested
            for symbol in t.get_symbols()
            if symbol.is_declared_global() and symbol.is_assigned()
        }

    @cached_property
    def needs(self) -> set[str]:
        """Names of the module read by the statement, directly or when called."""
        top, *nested = self._symbol_tables
        referenced = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
        return referenced | {
            symbol.get_name() for table in nested for symbol in table.get_symbols() if symbol.is_global()
        }

    @cached_property
    def changes(self) -> set[str]:
        """Names of objects changed in place: `NAME.x = …`, `NAME[x] = …`, `NAME.append(…)`."""
        roots = set()
        for node in _walk_outside_definitions(self.node):
            if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
                roots.add(_root_name(node))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = node.value.func
                roots |= {_root_name(called)} if isinstance(called, ast.Attribute) else set()
        return roots - {""}

    @property
    def is_import(self) -> bool:
        return isinstance(self.node, (ast.Import, ast.ImportFrom))

    @cached_property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """The imports in the statement, including imports within functions."""
        return [node for node in self._all_nodes if isinstance(node, (ast.Import, ast.ImportFrom))]

    @cached_property
    def texts(self) -> set[str]:
        """String literals that may name a file or a folder."""
        values = {
            node.value for node in self._all_nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        return {
            value for value in values if 0 < len(value) <= _LONGEST_NAME and "\n" not in value and "\0" not in value
        }

    @cached_property
    def _all_nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.node))


@dataclass(frozen=True)
class ParsedModule:
    """The top-level statements of a file."""

    statements: tuple[Statement, ...]

    @classmethod
    def parse(cls, source: str | bytes, *, as_program: bool = False) -> ParsedModule:
        """Parse a file. Raises SyntaxError.

        Args:
            as_program: Statements below `if __name__ == "__main__":` also count.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # shown when the file is imported
            body = ast.parse(source).body
        nodes: list[ast.stmt] = []
        for node in body:
            if not _is_main_guard(node):
                nodes.append(node)
            elif as_program and isinstance(node, ast.If):
                nodes += node.body
        return cls(tuple(Statement(node) for node in nodes))

    @classmethod
    def parse_cells(cls, cells: Iterable[str]) -> ParsedModule:
        """Parse a notebook's cells in order. The last definition of a name counts."""
        by_definition: dict[str, Statement] = {}
        for cell in cells:
            lines = [line for line in cell.splitlines() if not line.lstrip().startswith(("%", "!"))]
            try:
                statements = cls.parse("\n".join(lines)).statements
            except SyntaxError:  # it did not run either
                continue
            for statement in statements:
                defines = isinstance(statement.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                by_definition[f"def {','.join(sorted(statement.binds))}" if defines else statement.text] = statement
        return cls(tuple(by_definition.values()))

    @cached_property
    def hides_bindings(self) -> bool:
        """True if the source does not show all names of the module."""
        for node in (each for statement in self.statements for each in statement._all_nodes):
            if isinstance(node, ast.Name) and node.id in _HIDDEN_BINDINGS:
                return True
            if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
                return True
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                return True
        return False

    def select(self, name: str | None) -> list[Statement]:
        """Return the statements reached from `name`, in order, or all statements for an unknown name."""
        bound_names = (
            {bound for statement in self.statements for bound in statement.binds} if name is not None else set()
        )
        if name is None or name not in bound_names or self.hides_bindings:
            return list(self.statements)
        imported = {bound for statement in self.statements if statement.is_import for bound in statement.binds}
        reached: dict[int, Statement] = {}
        names, pending = {name}, True
        while pending:
            pending = False
            for index, statement in enumerate(self.statements):
                changed = statement.changes - imported if isinstance(statement.node, ast.Expr) else statement.changes
                if index in reached or not names & (statement.binds | changed):
                    continue
                reached[index] = statement
                names |= statement.needs & bound_names
                pending = True
        return [reached[index] for index in sorted(reached)]


@dataclass
class ReachedCode:
    """Collects the statements that a class or function reaches, across files."""

    roots: tuple[Path, ...]
    """Folders searched after a file's own: the YAML's and the working directory."""
    statements: dict[Path, dict[str, None]] = field(default_factory=dict)
    """Text of the statements of each Python file."""
    prompts: set[Path] = field(default_factory=set)
    _modules: dict[Path, ParsedModule] = field(default_factory=dict)
    _visited_targets: set[_Target] = field(default_factory=set)
    _found_files: dict[tuple[Path, tuple[str, ...], int], list[Path]] = field(default_factory=dict)

    def add(self, file: Path, name: str | None) -> None:
        """Add the statements that `name` reaches in `file` and in the files it imports.

        None adds the complete file. A file that cannot be parsed adds nothing.
        """
        pending: list[_Target] = [(file.resolve(), name)]
        while pending:
            target = pending.pop()
            if target in self._visited_targets:
                continue
            self._visited_targets.add(target)
            module_file, wanted_name = target
            try:
                module = self._modules.get(module_file) or ParsedModule.parse(module_file.read_bytes())
            except (SyntaxError, ValueError, OSError):  # the later import explains the error
                continue
            self._modules[module_file] = module
            pending += self._take_statements(module_file, module.select(wanted_name))

    def add_module(self, path: Path, module: ParsedModule, name: str) -> None:
        """Add the code reached from `name` in a parsed module, for example the running program."""
        for file, imported in self._take_statements(path, module.select(name)):
            self.add(file, imported)

    def _take_statements(self, path: Path, statements: list[Statement]) -> Iterator[_Target]:
        texts = self.statements.setdefault(path, {})
        for statement in statements:
            texts[statement.text] = None
        self.prompts |= set(self._find_prompts(path, {text for each in statements for text in each.texts}))
        for each in statements:
            for node in each.imports:
                yield from self._follow_import(path, node)

    def _find_prompts(self, place: Path, texts: set[str]) -> Iterator[Path]:
        roots = [place.parent, *self.roots]
        names = {text for text in texts if text.endswith(tuple(PROMPT_SUFFIXES))}
        if not names:
            return
        folders = [root / text for root in roots for text in texts - names if os.path.isdir(root / text)]
        for folder in [*roots, *folders]:
            yield from (path.resolve() for text in names if os.path.isfile(path := folder / text))

    def _follow_import(self, path: Path, node: ast.Import | ast.ImportFrom) -> Iterator[_Target]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((file, None) for file in self._find_import_files(path, alias.name.split("."), 0))
            return
        parts = node.module.split(".") if node.module else []
        files = self._find_import_files(path, parts, node.level)
        yield from ((file, None) for file in files[:-1])
        for alias in node.names:
            submodule_files = self._find_import_files(path, [*parts, alias.name], node.level)
            if len(submodule_files) > len(files):
                yield submodule_files[-1], None
            if files:
                yield files[-1], None if alias.name == "*" else alias.name

    def _find_import_files(self, path: Path, parts: list[str], level: int) -> list[Path]:
        """Return the files run by an import: each package's `__init__.py`, then the module."""
        key = (path.parent, tuple(parts), level)
        if key not in self._found_files:
            self._found_files[key] = self._find_files(path, parts, level)
        return self._found_files[key]

    def _find_files(self, path: Path, parts: list[str], level: int) -> list[Path]:
        """Return the user's files that an import statement of `path` loads; [] for the standard library and ajet."""
        if level:
            folder = path.parents[level - 1]
            package_files = [folder / "__init__.py"] if (folder / "__init__.py").is_file() else []
            return package_files + _files_below(folder, parts)
        if not parts or parts[0] == "ajet" or parts[0] in sys.stdlib_module_names:
            search_roots = [] if not parts or parts[0] in ("ajet", *sys.builtin_module_names) else [path.parent]
        else:
            search_roots = [_package_root(path), path.parent, *self.roots]
        for root in search_roots:
            if (package_files := _files_below(root, parts)) and not is_library_file(package_files[0]):
                return package_files
        return find_installed_files(parts) if search_roots and parts[0] not in sys.stdlib_module_names else []


def _files_below(root: Path, parts: list[str]) -> list[Path]:
    init_files: list[Path] = []
    folder = root
    for index, part in enumerate(parts):
        module, package = folder / f"{part}.py", folder / part
        if (package / "__init__.py").is_file():
            init_files.append((package / "__init__.py").resolve())
        elif module.is_file():
            return [*init_files, module.resolve()] if index == len(parts) - 1 else init_files
        elif not package.is_dir():
            return init_files
        folder = package
    return init_files


def find_installed_files(parts: list[str]) -> list[Path]:
    """Find the files that an import runs, in a package installed from a folder of the user's (`pip install -e`)."""
    start_plugins()  # their import hooks find more
    try:
        spec = importlib.util.find_spec(parts[0])
    except (ValueError, ImportError):
        return []
    if spec is None or spec.origin is None or not spec.origin.endswith(".py") or is_library_file(Path(spec.origin)):
        return []
    origin = Path(spec.origin)
    root = origin.parent.parent if origin.name == "__init__.py" else origin.parent
    return _files_below(root, parts)


def _package_root(path: Path) -> Path:
    """Return the folder of a file's outermost package."""
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _walk_outside_definitions(node: ast.AST) -> Iterator[ast.AST]:
    pending: list[ast.AST] = [node]
    while pending:
        each = pending.pop()
        yield each
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(each))


def _root_name(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_main_guard(node: ast.stmt) -> bool:
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare)):
        return False
    sides = [node.test.left, *node.test.comparators]
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)

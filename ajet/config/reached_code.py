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
    """A top-level statement of a module, with the names that it binds, reads and changes."""

    node: ast.stmt

    @cached_property
    def text(self) -> str:
        """The statement as source text without comments and layout, which therefore do not change its digest."""
        return ast.unparse(self.node)

    @cached_property
    def _symbol_tables(self) -> list[symtable.SymbolTable]:
        """Symbol tables of the statement and of everything nested in it, outermost first."""
        found_tables = [symtable.symtable(self.text, "statement", "exec")]
        for table in found_tables:
            found_tables += table.get_children()
        return found_tables

    @cached_property
    def binds(self) -> set[str]:
        """Names that the statement binds in its module, also by `global` within a function."""
        top, *nested = self._symbol_tables
        bound_names = {
            symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()
        }
        return bound_names | {
            symbol.get_name()
            for table in nested
            for symbol in table.get_symbols()
            if symbol.is_declared_global() and symbol.is_assigned()
        }

    @cached_property
    def needs(self) -> set[str]:
        """Names of the module that the statement reads when it runs, or when a function defined in it is called."""
        top, *nested = self._symbol_tables
        referenced = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
        return referenced | {
            symbol.get_name() for table in nested for symbol in table.get_symbols() if symbol.is_global()
        }

    @cached_property
    def changes(self) -> set[str]:
        """Names whose objects the statement changes in place: `NAME.x = …`, `NAME[x] = …`, `NAME.append(…)`."""
        changed_names = set()
        for node in _walk_outside_definitions(self.node):
            if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
                changed_names.add(_root_name(node))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called_function = node.value.func
                changed_names |= {_root_name(called_function)} if isinstance(called_function, ast.Attribute) else set()
        return changed_names - {""}

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
    """The top-level statements of a Python file or notebook, parsed and not run."""

    statements: tuple[Statement, ...]

    @classmethod
    def parse(cls, source: str | bytes, *, as_program: bool = False) -> ParsedModule:
        """Parse a file's source. Raises SyntaxError.

        Args:
            as_program: True to include statements below `if __name__ == "__main__":`.
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
        """Parse the cells of a notebook in the order in which they ran.

        Of two definitions of a name, the later one counts.
        """
        by_definition: dict[str, Statement] = {}
        for cell in cells:
            # Lines with IPython's commands (%, !) are no Python.
            lines = [line for line in cell.splitlines() if not line.lstrip().startswith(("%", "!"))]
            try:
                statements = cls.parse("\n".join(lines)).statements
            except SyntaxError:  # it did not run either
                continue
            for statement in statements:
                is_definition = isinstance(statement.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                by_definition[f"def {','.join(sorted(statement.binds))}" if is_definition else statement.text] = (
                    statement
                )
        return cls(tuple(by_definition.values()))

    @cached_property
    def hides_bindings(self) -> bool:
        """True if the module may have names that its source does not show, as by `exec` or a star import."""
        for node in (inner for statement in self.statements for inner in statement._all_nodes):
            if isinstance(node, ast.Name) and node.id in _HIDDEN_BINDINGS:
                return True
            if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
                return True
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                return True
        return False

    def select(self, name: str | None) -> list[Statement]:
        """Return the statements on which the name `name` depends, directly or through other names, in source order.

        All statements for None, an unknown name, or a module whose names cannot be seen in its source.
        """
        bound_names = (
            {bound for statement in self.statements for bound in statement.binds} if name is not None else set()
        )
        if name is None or name not in bound_names or self.hides_bindings:
            return list(self.statements)
        imported_names = {bound for statement in self.statements if statement.is_import for bound in statement.binds}
        reached_statements: dict[int, Statement] = {}
        needed_names, has_new = {name}, True
        while has_new:
            has_new = False
            for index, statement in enumerate(self.statements):
                # A call such as `logging.basicConfig(…)` changes an imported module, not a name of this one.
                changed = (
                    statement.changes - imported_names if isinstance(statement.node, ast.Expr) else statement.changes
                )
                if index in reached_statements or not needed_names & (statement.binds | changed):
                    continue
                reached_statements[index] = statement
                needed_names |= statement.needs & bound_names
                has_new = True
        return [reached_statements[index] for index in sorted(reached_statements)]


@dataclass
class ReachedCode:
    """Collects the statements and prompt files that classes and functions of the user depend on, across files."""

    roots: tuple[Path, ...]
    """Folders searched after a file's own: the YAML's and the working directory."""
    statements: dict[Path, dict[str, None]] = field(default_factory=dict)
    """Text of the statements of each Python file."""
    prompts: set[Path] = field(default_factory=set)
    _modules: dict[Path, ParsedModule] = field(default_factory=dict)
    _visited_targets: set[_Target] = field(default_factory=set)
    _found_files: dict[tuple[Path, tuple[str, ...], int], list[Path]] = field(default_factory=dict)

    def add(self, file: Path, name: str | None) -> None:
        """Add the statements on which `name` depends, in `file` and in the user's files that it imports.

        A file that cannot be parsed adds nothing.

        Args:
            name: A class or function. None adds the complete file.
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
        """Add the code on which `name` depends in a parsed module, for example in the running program.

        Args:
            path: The file that the module counts as.
        """
        for file, imported in self._take_statements(path, module.select(name)):
            self.add(file, imported)

    def _take_statements(self, path: Path, statements: list[Statement]) -> Iterator[_Target]:
        """Add statements of the file `path` and the prompt files they name. Yield (file, name) of what they import."""
        texts = self.statements.setdefault(path, {})
        for statement in statements:
            texts[statement.text] = None
        self.prompts |= set(self._find_prompts(path, {text for statement in statements for text in statement.texts}))
        for statement in statements:
            for node in statement.imports:
                yield from self._follow_import(path, node)

    def _find_prompts(self, place: Path, texts: set[str]) -> Iterator[Path]:
        """Yield the existing prompt files that string literals name, alone or in a folder that another literal names.

        Args:
            place: The file with the literals.
            texts: The literals.
        """
        roots = [place.parent, *self.roots]
        names = {text for text in texts if text.endswith(tuple(PROMPT_SUFFIXES))}
        if not names:
            return
        folders = [root / text for root in roots for text in texts - names if os.path.isdir(root / text)]
        for folder in [*roots, *folders]:
            yield from (path.resolve() for text in names if os.path.isfile(path := folder / text))

    def _follow_import(self, path: Path, node: ast.Import | ast.ImportFrom) -> Iterator[_Target]:
        """Yield (file, name) of the user's code that an import statement of the file `path` loads.

        None: the complete file.
        """
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
        """Return the user's files that an import runs: each package's `__init__.py`, then the module. Cached.

        Args:
            path: The importing file.
            parts: The module's dotted name, split.
            level: Number of dots in front of a relative import.
        """
        key = (path.parent, tuple(parts), level)
        if key not in self._found_files:
            self._found_files[key] = self._find_files(path, parts, level)
        return self._found_files[key]

    def _find_files(self, path: Path, parts: list[str], level: int) -> list[Path]:
        """Return the user's files that an import in the file `path` runs, or [] for the standard library and ajet.

        Args:
            parts: The module's dotted name, split.
            level: Number of dots in front of a relative import.
        """
        if level:
            folder = path.parents[level - 1]
            package_files = [folder / "__init__.py"] if (folder / "__init__.py").is_file() else []
            return package_files + _files_below(folder, parts)
        # The file's own folder may still hold a module that hides one of the standard library.
        if not parts or parts[0] == "ajet" or parts[0] in sys.stdlib_module_names:
            search_roots = [] if not parts or parts[0] in ("ajet", *sys.builtin_module_names) else [path.parent]
        else:
            search_roots = [_package_root(path), path.parent, *self.roots]
        for root in search_roots:
            if (package_files := _files_below(root, parts)) and not is_library_file(package_files[0]):
                return package_files
        return find_installed_files(parts) if search_roots and parts[0] not in sys.stdlib_module_names else []


def _files_below(root: Path, parts: list[str]) -> list[Path]:
    """Return the files that importing the dotted name `parts` from folder `root` runs, as far as they exist."""
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
    """Return the files that an import runs in a package which is installed from a folder of the user's.

    `pip install -e` installs so. [] for any other package.
    """
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
    """Yield the node and its descendants, without the bodies of functions and classes, which do not run at once."""
    pending: list[ast.AST] = [node]
    while pending:
        descendant = pending.pop()
        yield descendant
        if not isinstance(descendant, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(descendant))


def _root_name(node: ast.expr) -> str:
    """Return the name at the root of an expression: "a" for `a.b[0].c()`, "" if it is no name."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_main_guard(node: ast.stmt) -> bool:
    """Return True for a statement `if __name__ == "__main__":`."""
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare)):
        return False
    sides = [node.test.left, *node.test.comparators]
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)

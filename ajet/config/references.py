"""References: `workflow.py->Class`, `dir/file.py->Class`, `pkg.module->Class`, `pkg.module:Class`.

Invariant: a reference means a place, not a base name: two files named workflow.py give two classes, and a file gives a
single class. The search order is `base` (the YAML's folder), the working directory, installed modules; for `tutorial.…`
also the shipped tutorials. `__main__` is the running program or notebook and unknown to other processes. An
UnresolvedReferenceError names the reference, the searched places and the nearest names.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ajet.config.locations import find_tutorials
from ajet.config.plugin import NamedKind, load_code
from ajet.config.plugins import find_part, find_renamed, list_package_roots, start_plugins
from ajet.config.schema.choices import is_reference
from ajet.config.scope import import_in, make_scope, strip_scope
from ajet.schema.advice import advise_on_agentscope
from ajet.schema.commands import format_extra_install
from ajet.schema.errors import UnresolvedReferenceError

FORMS = "workflow.py->Class, dir/file.py->Class, pkg.module->Class or pkg.module:Class"
RUNNING = "__main__"
"""The place of definitions in the running program."""
_EXTRAS = {"agentscope": "agentscope", "langchain_openai": "langchain", "aworld": "aworld", "pymongo": "mongo"}


@dataclass(frozen=True)
class CodeReference:
    """A reference to a class or function, split into the file or module and the name in it."""

    text: str
    place: str
    """A file (ends in .py) or a dotted module."""
    name: str

    @property
    def is_file(self) -> bool:
        """True if the place is a file rather than a dotted module."""
        return self.place.endswith(".py") or "/" in self.place


def parse_reference(text: str, *, key: str = "reference") -> CodeReference:
    """Return place and name of a reference such as `workflow.py->Class` or `pkg.module:Class`.

    Args:
        key: The configuration key with the reference, for the error.

    Raises:
        UnresolvedReferenceError: The text has another form.
    """
    location, arrow, name = text.partition("->")
    if not arrow:
        location, arrow, name = text.rpartition(":")
    location, name = location.strip(), name.strip()
    if not arrow or not location or not name.isidentifier():
        module, dot, last_part = text.strip().rpartition(".")
        do = (
            f"write {module}->{last_part}"
            if dot and last_part.isidentifier() and module.replace(".", "").isidentifier()
            else ""
        )
        if text.strip().endswith(".py"):
            do = f"add the name of the class or function: {text.strip()}->NAME"
        raise UnresolvedReferenceError(
            f"{key}: {text!r} is not a reference of the form FILE.py->NAME.", where=key, expected=FORMS, do=do
        )
    location, _, name = find_renamed(f"{location}:{name}").rpartition(":")
    return CodeReference(text, location, name)


def resolve_reference(
    reference: str,
    *,
    base: Path,
    expect: type | None = None,
    key: str = "reference",
    convert: Callable[[Any, str], Any] | None = None,
) -> Any:
    """Import and return the class or function that a reference in a YAML names.

    Args:
        reference: For example `workflow.py->MyWorkflow`.
        base: The YAML's folder, which is searched first.
        expect: A required base class.
        key: The configuration key with the reference, for errors.
        convert: Called with object and reference. The result replaces the object.

    Raises:
        UnresolvedReferenceError: There is no such file, module or name, its import fails, or it is of another class.
    """
    parsed = parse_reference(reference, key=key)
    file, package, dotted = _find_place(parsed, base, key)
    if file is not None:
        _check_name(parsed, file, key)
    module = _import_module(parsed, package, dotted, key)
    try:
        target = getattr(module, parsed.name)
    except AttributeError:
        exported = dict.fromkeys(getattr(module, "__all__", ()))  # some may be loaded only when they are used
        raise _make_missing_name_error(parsed, {**exported, **vars(module)}, str(file or dotted), key) from None
    target = target if convert is None else convert(target, reference)
    if expect is not None and not (isinstance(target, type) and issubclass(target, expect)):
        kind = f"the class {target.__name__}" if isinstance(target, type) else f"a {type(target).__name__}"
        raise UnresolvedReferenceError(
            f"{key}: {reference} is {kind}, not a subclass of {expect.__name__}.",
            where=str(file or dotted),
            expected=f"a subclass of {expect.__module__.split('.')[0]}.{expect.__name__}",
            do=f"write `class {parsed.name}({expect.__name__}):`",
        )
    return target


def check_reference(reference: str, *, base: Path, key: str) -> None:
    """Raise UnresolvedReferenceError for a missing file or module, a syntax error, or a name that is surely missing.

    The user's code does not run; a module's package is imported.
    """
    parsed = parse_reference(reference, key=key)
    if parsed.place == RUNNING:
        return
    file, _, _ = _find_place(parsed, base, key)
    if file is not None:
        _check_name(parsed, file, key)


def read_parameters_of(reference: str, *, base: Path, key: str) -> Callable[..., Any] | None:
    """Return a function with the parameters of the referenced one and no body; the user's code does not run.

    Returns:
        None if the parameters are not plain to see: a class, an import, a decorated function.

    Raises:
        UnresolvedReferenceError: as `check_reference`.
    """
    parsed = parse_reference(reference, key=key)
    file = None if parsed.place == RUNNING else _find_place(parsed, base, key)[0]
    if file is None:
        return None
    definitions = [
        node
        for node in _check_name(parsed, file, key).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == parsed.name
    ]
    if len(definitions) != 1 or definitions[0].decorator_list:
        return None
    node, arguments = definitions[0], definitions[0].args
    node.body, node.returns = [ast.copy_location(ast.Pass(), node)], None
    parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    for parameter in parameters:
        if parameter is not None:
            parameter.annotation = None
    # Annotations and defaults are expressions of the user's code, which must not run.
    placeholder = ast.copy_location(ast.Constant(None), node)
    arguments.defaults = [placeholder for _ in arguments.defaults]
    arguments.kw_defaults = [default and placeholder for default in arguments.kw_defaults]
    names: dict[str, Any] = {}
    exec(compile(ast.Module([node], []), str(file), "exec"), names)
    function: Callable[..., Any] = names[parsed.name]
    return function


def resolve_class(
    chosen: str, kind: NamedKind, *, base: Path, key: str, methods: Sequence[str], like: str
) -> type[Any]:
    """Return the class that a key's value names: a part that ships with ajet or a plug-in, or the user's by reference.

    Args:
        chosen: The value.
        kind: Kind of the part.
        base: The YAML's folder.
        key: The configuration key, for errors.
        methods: Required methods.
        like: Reference of a class that has them, for the error.

    Raises:
        UnresolvedReferenceError: The class does not exist, or lacks a method.
    """
    part = find_part(kind, chosen)
    candidate: Any = load_code(part.code) if part is not None else resolve_reference(chosen, base=base, key=key)
    missing = [name for name in methods if not callable(getattr(candidate, name, None))]
    if not isinstance(candidate, type) or missing:
        problem = f"has no {', '.join(missing)}" if isinstance(candidate, type) else f"is a {type(candidate).__name__}"
        raise UnresolvedReferenceError(
            f"{key}: {chosen} {problem}.",
            where=key,
            expected=f"a class with the methods {', '.join(methods)}, as {like}",
        )
    return candidate


def is_of_running_program(reference: str | None) -> bool:
    """Return True if the reference names a definition in the running program, which other processes cannot import."""
    return reference is not None and is_reference(reference) and parse_reference(reference).place == RUNNING


def find_referenced_file(reference: str, base: Path) -> Path | None:
    """Return the file that a reference names by path, or None for a module or a missing file."""
    parsed = parse_reference(reference)
    if not parsed.is_file:
        return None
    return next((path for path in _list_file_candidates(parsed, base) if os.path.isfile(path)), None)


def relativize(value: Any, base: Path) -> Any:
    """Return a path or reference below `base` relative to it, and any other value unchanged.

    Lists are converted by item.
    """
    if isinstance(value, list):
        return [relativize(item, base) for item in value]
    for folder in (base, base.resolve()):
        if isinstance(value, str) and value.startswith(f"{folder}{os.sep}"):
            return value[len(str(folder)) + 1 :]
    return value


def find_code_file(reference: str, base: Path) -> Path | None:
    """Return the file that importing a reference would run first, without importing anything.

    Returns None for an installed module or a missing file.

    Raises:
        UnresolvedReferenceError: The text is no reference.
    """
    parsed = parse_reference(reference)
    if parsed.is_file:
        return find_referenced_file(reference, base)
    if parsed.place == RUNNING:
        return None
    return next((path for path in _list_module_candidates(parsed, base) if os.path.isfile(path)), None)


def _list_module_candidates(parsed: CodeReference, base: Path) -> list[Path]:
    """Return the files that a dotted module may be, in the order of the search; they need not exist."""
    parts = parsed.place.split(".")
    if parts[0] == "ajet":
        return []  # `ajet` is always this package, even next to a clone of AgentJet
    roots = [base, Path.cwd()] + ([find_tutorials().parent] if parts[0] == "tutorial" else [])
    return [
        path
        for root in dict.fromkeys(root.resolve() for root in roots)
        for path in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py"))
    ]


def _list_file_candidates(parsed: CodeReference, base: Path) -> list[Path]:
    """Return the paths that a file reference may mean, in the order of the search; they need not exist."""
    file = Path(parsed.place).expanduser()
    roots = [base, Path.cwd()]
    if file.parts[:1] == ("tutorial",):
        roots.append(find_tutorials().parent)
    return list(dict.fromkeys((root / file).resolve() for root in roots))


def _find_place(parsed: CodeReference, base: Path, key: str) -> tuple[Path | None, str | None, str]:
    """Find the file and module that a reference means.

    Returns:
        The file, or None for a module without source. The package of the folder (a scope), or None for an installed
            module. The module's dotted name.

    Raises:
        UnresolvedReferenceError: There is no such file or module.
    """
    start_plugins()  # here, since every import of the user's code begins with this search
    if parsed.is_file:
        candidates = _list_file_candidates(parsed, base)
        for path in candidates:
            if os.path.isfile(path):
                return path, *_find_scope(path, base)
        raise _make_not_found_error(parsed, [str(path) for path in candidates], base, key)
    if parsed.place == RUNNING:
        return None, None, RUNNING
    parts = parsed.place.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UnresolvedReferenceError(
            f"{key}: {parsed.text!r} is not a reference of the form FILE.py->NAME.", where=key, expected=FORMS
        )
    module_candidates = _list_module_candidates(parsed, base)
    for path in module_candidates:
        if os.path.isfile(path):
            return path, *_find_scope(path, base)
    spec = _find_installed_spec(parsed.place)
    if spec is None:
        raise _make_not_found_error(parsed, [*map(str, module_candidates), "the installed modules"], base, key)
    file = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    return file, None, parsed.place


def _find_scope(path: Path, base: Path) -> tuple[str, str]:
    """Return the package that stands for a file's folder, and the file's dotted module name below it.

    They are the same for any spelling of the path, so that a file is loaded once.
    """
    parts = [path.stem] if path.stem != "__init__" else []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return make_scope(folder, fallbacks=[path.parent, base, Path.cwd()]), ".".join(parts)


def _find_installed_spec(dotted: str) -> Any:
    """Return the import spec of an installed module, or None."""
    try:
        return importlib.util.find_spec(dotted)
    except (ModuleNotFoundError, ValueError):
        return None


def _import_module(parsed: CodeReference, package: str | None, dotted: str, key: str) -> ModuleType:
    """Import the module of a reference. Whatever the user's code raises becomes an UnresolvedReferenceError.

    Args:
        package: Scope of the file's folder. None: an ordinary import.
        dotted: The module's name.
        key: The configuration key with the reference.
    """
    try:
        return importlib.import_module(dotted) if package is None else import_in(package, dotted)
    except ModuleNotFoundError as error:
        missing = strip_scope(error.name or "")
        if replacement := describe_replacement(missing):
            raise UnresolvedReferenceError(
                f"{key}: {parsed.text} imports {missing}, which belongs to AgentJet and does not exist in ajet.",
                where=_find_last_user_line(error),
                do=f"{replacement} (docs/agentjet.md)",
            ) from error
        extra = _EXTRAS.get(missing.partition(".")[0])
        advice = format_extra_install(extra) if extra else f"install the package, or correct the import of {missing}"
        raise UnresolvedReferenceError(
            f"{key}: {parsed.text} imports {missing}, which is not installed.",
            where=_find_last_user_line(error),
            do=advise_on_agentscope(error) or advice,
        ) from error
    except SystemExit as exit_error:
        raise UnresolvedReferenceError(
            f"{key}: importing {parsed.text} ends the program: SystemExit: {exit_error.code}",
            where=_find_last_user_line(exit_error),
            do='put code that only a program should run under `if __name__ == "__main__":`',
        ) from exit_error
    except Exception as error:  # the user's module runs here, it may raise anything
        raise UnresolvedReferenceError(
            f"{key}: {parsed.text} cannot be imported: {type(error).__name__}: {error}",
            where=_find_last_user_line(error),
            do=advise_on_agentscope(error) or "correct the file; --traceback prints the complete error",
        ) from error


def _find_last_user_line(error: BaseException) -> str:
    """Return file:line of the last line of the user's code in an error's traceback, or "" without a traceback.

    If that line called a library, the library's line that raised the error is named too.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    frames = [frame for frame in frames if "/ajet/config/" not in frame.filename] or frames
    if not frames:
        return ""
    raising_line = f"{frames[-1].filename}:{frames[-1].lineno}"
    user_frames = [frame for frame in frames if not is_library_file(frame.filename)]
    if not user_frames or user_frames[-1] is frames[-1]:
        return raising_line
    return f"{user_frames[-1].filename}:{user_frames[-1].lineno}, which called {raising_line}"


@lru_cache(maxsize=4096)
def is_library_file(file: str | Path) -> bool:
    """Return True if a file belongs to Python, to an installed package or to ajet, and so is not the user's."""
    path = Path(file)
    # By name, because the folder may belong to another user or Python.
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return is_installed or any(path.is_relative_to(root) for root in _library_roots())


@lru_cache(maxsize=1)
def _library_roots() -> tuple[Path, ...]:
    """Return the folders of the standard library, of installed packages and of ajet's own packages."""
    folders = (sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
    return (*map(Path, folders), *list_package_roots())


def _check_name(parsed: CodeReference, file: Path, key: str) -> ast.Module:
    """Return the syntax tree of a reference's file.

    Raises:
        UnresolvedReferenceError: The file has a syntax error, or surely does not define the name.
    """
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        raise UnresolvedReferenceError(
            f"{key}: {parsed.text} is not valid Python: {error.msg}",
            where=f"{file}:{error.lineno}:{error.offset}",
            do="correct the syntax there",
        ) from error
    bound_names, is_complete = _list_bound_names(tree)
    if is_complete and parsed.name not in bound_names:
        raise _make_missing_name_error(parsed, bound_names, str(file), key)
    return tree


def _list_bound_names(tree: ast.Module) -> tuple[dict[str, bool], bool]:
    """Return the top-level names of a file, and whether these are surely all.

    Returns:
        By name, True for a class or public function that the file defines. False as second value if the file may have
            more names, as by a star import.
    """
    bound_names: dict[str, bool] = {}
    is_complete = True
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            bound_names[node.name] = isinstance(node, ast.ClassDef) or not node.name.startswith("_")
            is_complete &= node.name != "__getattr__"
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                is_complete &= alias.name != "*"
                bound_names.setdefault((alias.asname or alias.name).partition(".")[0], False)
        elif isinstance(node, ast.Name):
            is_complete &= node.id not in ("globals", "exec", "setattr")
            if isinstance(node.ctx, ast.Store):
                bound_names.setdefault(node.id, False)
        pending.extend(ast.iter_child_nodes(node))
    return bound_names, is_complete


def _make_missing_name_error(parsed: CodeReference, bound: Any, where: str, key: str) -> UnresolvedReferenceError:
    """Return the error for a reference to a name that its file or program does not define, with similar names.

    Args:
        bound: The names that are defined, as in `vars(module)` or by `_list_bound_names`.
        where: The file.
        key: The configuration key with the reference.
    """
    if parsed.place == RUNNING:
        return UnresolvedReferenceError(
            f"{key}: {parsed.text} refers to {parsed.name} in the running program, which does not define "
            f"{parsed.name}.",
            where=key,
            expected=f"a program or notebook that defines {parsed.name}, such as the one that started this run",
            do=f"run that program, or move {parsed.name} to a separate file and write FILE.py->{parsed.name}",
        )
    defined_code = sorted(name for name, value in bound.items() if value is True or isinstance(value, type))
    similar = get_close_matches(parsed.name, [name for name in bound if not name.startswith("__")], 3, cutoff=0.5)
    return UnresolvedReferenceError(
        f"{key}: {parsed.text} refers to {parsed.name}, which the file does not define.",
        where=where,
        expected=f"one of {', '.join(similar or defined_code[:8])}"
        if similar or defined_code
        else "a class or function at the file's top level",
        do=f"write {parsed.text.rstrip().removesuffix(parsed.name)}{similar[0]}"
        if similar
        else f"define {parsed.name} there, or refer to another name",
    )


def _make_not_found_error(parsed: CodeReference, looked: list[str], base: Path, key: str) -> UnresolvedReferenceError:
    """Return the error for a reference to a missing file or module.

    Args:
        looked: The places searched.
        base: The YAML's folder.
        key: The configuration key with the reference.
    """
    looked_from = "the working directory" if base == Path.cwd() else "the YAML's folder"
    similar = _suggest_file(looked)
    return UnresolvedReferenceError(
        f"{key}: {parsed.text} refers to the file or module {parsed.place}, which does not exist.",
        where="looked for " + ", ".join(looked),
        expected=FORMS,
        do=f"did you mean {similar}?" if similar else f"correct the path, which is relative to {looked_from}",
    )


def _suggest_file(looked: list[str]) -> str:
    """Return the name of a file that resembles the one looked for first, from the same folder, or ""."""
    file_name = Path(looked[0]).name
    folder = Path(looked[0]).parent
    names = [path.name for path in folder.glob("*.py")] if folder.is_dir() else []
    similar = get_close_matches(file_name, names, 1)
    return similar[0] if similar else ""


# Modules of AgentJet's package that do not exist here, each with what to write instead. The sentences are shown where a
# reference of the YAML leads to a file that imports one.
_SERVED = (
    "remote agents connect to `ajet serve` with ajet.client, whose `Client` replaces SwarmClient; a workflow "
    "gets its tuner as an argument"
)
_READERS = "set a reader of your own by reference: `task_reader.type: reader.py->MyReader`"
_INNER = "an internal module of AgentJet, which ajet does not replace"

FOREIGN_MODULES: Mapping[str, str] = {
    "ajet.tuner_lib": _SERVED,
    "ajet.swarm_cli": _SERVED,
    "ajet.copilot.tinkerjet": _SERVED,
    "ajet.cli.job": "write `from ajet import AgentJetJob`",
    "ajet.default_config": "`AgentJetJob.set_data` takes the reader and its keys",
    "ajet.task_reader": _READERS,
    "ajet.data_generator": "`task_reader.type: data_generation` writes tasks",
    "ajet.task_judge.rm_auto_grader_judge": "`task_judge.judge_type: rubrics_auto_grader` chooses it",
    "ajet.utils": _INNER,
    "ajet.task_rollout": _INNER,
    "ajet.task_runner": _INNER,
    "ajet.credit_assignment": _INNER,
    "ajet.schema.trajectory": _INNER,
    "ajet.schema.extended_msg": _INNER,
    "astuner": "its name is ajet, and so is the section of its YAML",
}


def describe_replacement(name: str) -> str:
    """Return what to use instead of a module of AgentJet that ajet does not have, or "" for any other module."""
    parts = name.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((FOREIGN_MODULES[prefix] for prefix in prefixes if prefix in FOREIGN_MODULES), "")

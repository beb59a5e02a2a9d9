"""Digests of the user's code and prompt files that affect rollouts and rewards of a run.

Invariant: a digest changes only with code that the named class or function reaches: its file, imported modules of the
user, and text files named by a literal. Comments and layout do not count. Code loaded by a computed name, prompts built
from several literals, and installed packages are not covered.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.config.document import list_leaves
from ajet.config.reached_code import PROMPT_SUFFIXES, ParsedModule, ReachedCode, find_installed_files
from ajet.config.references import RUNNING, find_code_file, parse_reference
from ajet.config.schema.choices import is_reference

if TYPE_CHECKING:
    from ajet.config.experiment import Experiment

CodeDigests = dict[str, dict[str, str]]
"""Configuration key -> file, relative to the YAML's folder -> digest."""
JUDGE = "ajet.task_judge."
_SCRIPTS = {".py", ".sh", ".js", ".mjs", ".ts"}
_SIZE = 16


def digest_code(experiment: Experiment) -> CodeDigests:
    """Return the digests of all user code and prompt files that affect a run, by the key that names them."""
    code_digests: CodeDigests = {}
    for key, text in _list_candidate_texts(experiment):
        digests = (
            _digest_reference(text, experiment.base) if _is_reference(text) else _digest_files(text, experiment.base)
        )
        if digests:
            code_digests.setdefault(key, {}).update(digests)
    return code_digests


def digest_judge(experiment: Experiment, code: CodeDigests) -> str:
    """Return a digest of everything that determines rewards: settings and code of the judge.

    If no judge is named, all user code counts, because the workflow or the task reader scores.

    Args:
        code: As returned by `digest_code`.
    """
    settings = {key: value for key, value in experiment.list_training_settings().items() if key.startswith(JUDGE)}
    scoring_code = {key: files for key, files in code.items() if key.startswith(JUDGE)}
    if not experiment.ajet.task_judge.list_judges():
        scoring_code = code
    return _digest_bytes(json.dumps([settings, scoring_code], sort_keys=True, default=str).encode())


def list_changed_files(before: CodeDigests, now: CodeDigests) -> dict[str, list[str]]:
    """Return the files whose digests differ, each with the configuration keys that lead to it.

    Only keys in both digests are compared.
    """
    keys_by_file: dict[str, list[str]] = {}
    for key in sorted(before.keys() & now.keys()):
        for file in sorted(before[key].keys() | now[key].keys()):
            if before[key].get(file) != now[key].get(file):
                keys_by_file.setdefault(file, []).append(key)
    return keys_by_file


def _list_candidate_texts(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of each one-line text in the training settings, any of which may name code or a prompt file."""
    for name, value in experiment.list_training_settings().items():
        for path, leaf in list_leaves(value, (name,)):
            if isinstance(leaf, str) and "\n" not in leaf:
                yield ".".join(map(str, path)), leaf


def _digest_reference(reference: str, base: Path) -> dict[str, str]:
    """Return the digests of the files with code that a reference leads to, by file.

    Args:
        base: The folder that references are relative to.
    """
    parsed, code = parse_reference(reference), _make_reached_code(base)
    if parsed.place == RUNNING:
        _add_running(code, parsed.name)
    elif (file := find_code_file(reference, base)) is not None:
        code.add(file, parsed.name)
    elif not parsed.is_file and (files := find_installed_files(parsed.place.split("."))):
        for package in files[:-1]:
            code.add(package, None)
        code.add(files[-1], parsed.name)
    return _digest_reached_files(code, base)


def _is_reference(text: str) -> bool:
    """Return True if a text refers to code. Prose with a colon, which `is_reference` accepts, does not."""
    if not is_reference(text):
        return False
    module = text.rpartition("->")[0] or text.rpartition(":")[0]
    return module.strip().endswith(".py") or all(part.isidentifier() for part in module.strip().split("."))


def _add_running(code: ReachedCode, name: str) -> None:
    """Add the definition of a class or function in the running program or notebook, and the code that it uses.

    Args:
        code: Collects the code.
        name: Name of the class or function.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is not None and Path(file).is_file():
        program = ParsedModule.parse(Path(file).read_bytes(), as_program=True)
    else:  # a notebook: the cells that have been run; of two definitions of a name, the later one holds
        file, program = Path.cwd() / "__main__", ParsedModule.parse_cells(getattr(main, "In", ()))
    if any(name in statement.binds for statement in program.statements):
        code.add_module(Path(file).resolve(), program, name)


def _digest_files(text: str, base: Path) -> dict[str, str]:
    """Return the digests of the scripts and prompt files in a command such as `{python} tools.py`, by file.

    Args:
        base: The folder that paths are relative to, besides the working directory.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        words = [text]
    code = _make_reached_code(base)
    for word in words:
        suffix = Path(word).suffix
        file = next((path for root in code.roots if os.path.isfile(path := root / word)), None)
        if file is not None and suffix == ".py":
            code.add(file, None)
        elif file is not None and suffix in PROMPT_SUFFIXES | _SCRIPTS:
            code.prompts.add(file.resolve())
    return _digest_reached_files(code, base)


def _make_reached_code(base: Path) -> ReachedCode:
    """Return an empty collection of code, which looks up files in the YAML's folder and in the working directory."""
    return ReachedCode(tuple(dict.fromkeys((base.resolve(), Path.cwd().resolve()))))


def _digest_reached_files(code: ReachedCode, base: Path) -> dict[str, str]:
    """Return the digest of the collected statements and prompts of each file, by path relative to `base`."""
    texts = {path: "\n".join(statements).encode() for path, statements in code.statements.items()}
    texts |= {path: path.read_bytes() for path in code.prompts}
    return {os.path.relpath(path, base.resolve()): _digest_bytes(text) for path, text in sorted(texts.items())}


def _digest_bytes(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_SIZE).hexdigest()

"""Files in which a person describes servers, models, an environment: found, read, and refused in one screen.

Invariant: what is wrong is told by its place, never by the line itself, which may hold a key; secrets stand in a file
as `${NAME}` and are read from the environment here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from dotenv import dotenv_values
from pydantic import ValidationError

from ajet.schema.errors import ConfigError, UserError
from ajet.schema.text_files import read_text

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def find_named_file(named: str, base: Path, key: str) -> Path:
    """The file that a key names: in `base`, or in the working directory. Raises ConfigError."""
    wanted = Path(named).expanduser()
    file = next((path for path in (base / wanted, Path.cwd() / wanted) if path.is_file()), None)
    if file is None:
        raise ConfigError(
            f"{key.removeprefix('ajet.')}: there is no file {named}.",
            where=key,
            expected=f"a file in {base} or {Path.cwd()}",
        )
    return file


def read_yaml(file: Path, form: str = "no YAML") -> Any:
    """Its tree, read again only when the file has changed: each attempt asks. Nobody changes it. Raises ConfigError,
    which says that it is `form`; OSError where it is not there."""
    found = file.stat()
    return _read_yaml(file.absolute(), form, (found.st_mtime_ns, found.st_size, found.st_ino))


@lru_cache(maxsize=32)
def _read_yaml(file: Path, form: str, version: tuple[int, ...]) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise ConfigError(f"{file.name} cannot be read: {error.strerror}.", where=str(file)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        why = f"{problem}, line {mark.line + 1}" if mark is not None else problem or type(error).__name__
        raise ConfigError(f"{file.name} is {form}: {why}.", where=str(file)) from None


def invalid_section_error(error: ValidationError, file: Path, known: Iterable[str], *above: str) -> ConfigError:
    """The first thing that a model found wrong, at its place below `above`; `known`: its keys."""
    first = error.errors()[0]
    place = ".".join(map(str, (*above, *first["loc"])))
    return ConfigError(
        f"{place}: {first_message(error)}.",
        where=str(file),
        expected=f"one of {', '.join(known)}" if first["type"] == "extra_forbidden" else "",
    )


def first_message(error: ValidationError) -> str:
    """The first message of a validation error, in its own words."""
    return str(error.errors()[0]["msg"]).removeprefix("Value error, ")


def find_variables(value: Any) -> dict[str, bool]:
    """The variables that stand in it as `${NAME}`, in order: whether one of them has no default."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        found: dict[str, bool] = {}
        for each in value:
            for name, needed in find_variables(each).items():
                found[name] = found.get(name, False) or needed
        return found
    matches = _VARIABLE.finditer(value) if isinstance(value, str) else ()
    return {match[1]: match[2] is None for match in matches}


def expand_variables(value: Any, where: str, variables: Mapping[str, str] | None = None) -> Any:
    """The text with `${NAME}` and `${NAME:-default}` from `variables`, else from the environment; the default is for a
    name that is not set, or empty. Raises ConfigError for a name that is not set and has none."""
    given = os.environ if variables is None else variables
    if isinstance(value, dict):
        return {name: expand_variables(each, where, given) for name, each in value.items()}
    if isinstance(value, list):
        return [expand_variables(each, where, given) for each in value]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        known = given.get(match[1]) or match[2]
        if known is None and match[1] not in given:
            raise ConfigError(
                f"The environment variable {match[1]} is not set.",
                where=where,
                do=f"export {match[1]}=…, put it into .env, or write ${{{match[1]}:-default}}",
            )
        return known or ""

    return _VARIABLE.sub(replaced, value)


def read_variables(
    file: Path, environment: Mapping[str, str] | None = None, *, template: Path | None = None
) -> dict[str, str]:
    """Variables of an env file, `${NAME}` and `${NAME:-default}` in them expanded by the environment and by what stands
    above; over them those that the environment has. `template`: a file that one can begin with. Raises UserError for a
    file that is not there, or a `${NAME}` that nobody set."""
    given = dict(os.environ if environment is None else environment)
    if not file.is_file():
        do = f"copy {template} there and fill it in" if template is not None else "make it, or correct its path"
        raise UserError(f"There is no env file {file}.", do=do)
    values: dict[str, str] = {}
    for name, value in dotenv_values(stream=StringIO(read_text(file)), interpolate=False).items():
        values[name] = given.get(name) or expand_variables(value or "", f"{file}: {name}", {**values, **given})
    return {**given, **values}

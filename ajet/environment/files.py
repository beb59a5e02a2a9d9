"""Read user files that describe servers, models or environments.

Invariant: an error names the place, never the line's content, because lines may hold keys. Secrets appear in files as
`${NAME}` and are expanded from the environment.
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
    """Return an existing file: in `base`, else in the working directory.

    Args:
        named: Path of the file as configured.
        key: Configuration key of the path, for the error.

    Raises:
        ConfigError: the file exists in neither folder.
    """
    expanded = Path(named).expanduser()
    file = next((path for path in (base / expanded, Path.cwd() / expanded) if path.is_file()), None)
    if file is None:
        raise ConfigError(
            f"{key.removeprefix('ajet.')}: the file {named} does not exist.",
            where=key,
            expected=f"a file in {base} or {Path.cwd()}",
        )
    return file


def read_yaml(file: Path, form: str = "not valid YAML") -> Any:
    """Return the content of a YAML file, cached until the file changes. Callers must not modify it.

    Args:
        form: Description of an invalid file, for the error.

    Raises:
        ConfigError: the file is no valid YAML, or this user may not read it.
        OSError: the file is missing.
    """
    status = file.stat()
    return _read_yaml(file.absolute(), form, (status.st_mtime_ns, status.st_size, status.st_ino))


@lru_cache(maxsize=32)
def _read_yaml(file: Path, form: str, version: tuple[int, ...]) -> Any:
    """Return the content of a YAML file.

    Args:
        version: Time, size and inode of the file. A changed version misses the cache.
    """
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise ConfigError(f"{file.name} cannot be read: {error.strerror}.", where=str(file)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        reason = f"{problem}, line {mark.line + 1}" if mark is not None else problem or type(error).__name__
        raise ConfigError(f"{file.name} is {form}: {reason}.", where=str(file)) from None


def invalid_section_error(error: ValidationError, file: Path, known: Iterable[str], *above: str) -> ConfigError:
    """Return the error for the first invalid value of a section.

    Args:
        file: File of the section.
        known: Valid keys, named in the error for an unknown key.
        above: Keys from the top of the file down to the section.
    """
    first_error = error.errors()[0]
    key = ".".join(map(str, (*above, *first_error["loc"])))
    return ConfigError(
        f"{key}: {first_message(error)}.",
        where=str(file),
        expected=f"one of {', '.join(known)}" if first_error["type"] == "extra_forbidden" else "",
    )


def first_message(error: ValidationError) -> str:
    """Return the first message of a validation error, without pydantic's prefix."""
    return str(error.errors()[0]["msg"]).removeprefix("Value error, ")


def find_variables(value: Any) -> dict[str, bool]:
    """Return the variables that a value's texts use as `${NAME}`, in order.

    Each has True if it is needed, because one of its uses has no default (`${NAME:-default}`).
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        needed_by_name: dict[str, bool] = {}
        for item in value:
            for name, needed in find_variables(item).items():
                needed_by_name[name] = needed_by_name.get(name, False) or needed
        return needed_by_name
    matches = _VARIABLE.finditer(value) if isinstance(value, str) else ()
    return {match[1]: match[2] is None for match in matches}


def expand_variables(value: Any, where: str, variables: Mapping[str, str] | None = None) -> Any:
    """Return the value with `${NAME}` and `${NAME:-default}` expanded in all texts within lists and objects.

    The default replaces unset and empty values.

    Args:
        where: Place of the value, for the error.
        variables: Values by name. None: the environment.

    Raises:
        ConfigError: an unset name has no default.
    """
    environment = os.environ if variables is None else variables
    if isinstance(value, dict):
        return {name: expand_variables(entry, where, environment) for name, entry in value.items()}
    if isinstance(value, list):
        return [expand_variables(item, where, environment) for item in value]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        """Return the value of a matched variable."""
        variable = environment.get(match[1]) or match[2]  # group 2 is the default
        if variable is None and match[1] not in environment:  # a variable may be set to an empty text
            raise ConfigError(
                f"The environment variable {match[1]} is not set.",
                where=where,
                do=f"export {match[1]}=…, add it to .env, or write ${{{match[1]}:-default}}",
            )
        return variable or ""

    return _VARIABLE.sub(replaced, value)


def read_variables(
    file: Path, environment: Mapping[str, str] | None = None, *, template: Path | None = None
) -> dict[str, str]:
    """Return the environment together with the variables of an env file, whose `${NAME}` are expanded.

    A variable of the environment takes precedence over the file's. Lines may use variables of earlier lines.

    Args:
        environment: None: the environment of this process.
        template: File to copy if the file is missing, for the error.

    Raises:
        UserError: the file is missing, or a `${NAME}` is unset.
    """
    base = dict(os.environ if environment is None else environment)
    if not file.is_file():
        do = (
            f"copy {template} to this path and fill it in"
            if template is not None
            else "create the file, or correct its path"
        )
        raise UserError(f"The file with environment variables {file} does not exist.", do=do)
    values: dict[str, str] = {}
    for name, value in dotenv_values(stream=StringIO(read_text(file)), interpolate=False).items():
        values[name] = base.get(name) or expand_variables(value or "", f"{file}: {name}", {**values, **base})
    return {**base, **values}

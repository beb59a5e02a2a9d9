"""Whether a server is on, and why not.

Invariant: nothing is asked over a network to find out; a server that is off says what would turn it on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path

from dotenv import dotenv_values

from ajet.environment.files import expanded
from ajet.environment.gaia.server import Server
from ajet.schema.errors import UserError
from ajet.schema.text_files import read_text

ENV_TEMPLATE = Path(__file__).with_name("env_template")
"""Every variable that a server reads, to be filled in."""
OLDER = "BROWSERUSE_LLM_"
"""How AWorld's env template begins the names of browser-server's."""
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


def why_off(
    server: Server,
    variables: Mapping[str, str],
    *,
    network: bool,
    corpus: bool,
    find: Callable[[str], str | None] = shutil.which,
) -> str:
    """Why a server is off, in a sentence for whoever calls one of its tools; "": it is on. `network`: whether addresses
    outside may be asked; `corpus`: whether one is given."""
    if server.corpus and corpus:
        return ""
    if server.only_corpus:
        return f"{server.name} is off: it needs a corpus, and none is given"
    missing = [name for name in server.variables if not variables.get(name)]
    reasons = [f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"] if missing else []
    lacking = [name for name in server.executables if found(name, variables, find) is None]
    reasons += [f"the program {name} is not installed" for name in lacking]
    if server.network and not network:
        reasons.append("the network is off here")
    if not reasons:
        return ""
    instead = "; a corpus would do instead" if server.corpus else ""
    return f"{server.name} is off: {'; '.join(reasons)}{instead}"


def found(
    executable: str, variables: Mapping[str, str], find: Callable[[str], str | None] = shutil.which
) -> str | None:
    """The path of a program; a browser's may be named by the variable CHROMIUM."""
    if executable == "chromium":
        return variables.get("CHROMIUM") or next(filter(None, map(find, CHROMIUMS)), None)
    return find(executable)


def with_older_names(variables: Mapping[str, str]) -> dict[str, str]:
    """These, and where one is set by its older name alone, as AWorld's env template has it, by the one that is read."""
    made = dict(variables)
    for name, value in variables.items():
        if name.startswith(OLDER):
            newer = f"BROWSER_LLM_{name.removeprefix(OLDER)}"
            made[newer] = made.get(newer) or value
    return made


def read_variables(file: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of an env file, `${NAME}` and `${NAME:-default}` in them expanded by the environment and by what stands
    above; over them those that the environment has. Raises UserError for a file that is not there, or a `${NAME}` that
    nobody set."""
    given = dict(os.environ if environment is None else environment)
    if not file.is_file():
        raise UserError(f"There is no env file {file}.", do=f"copy {ENV_TEMPLATE} there and fill it in")
    values: dict[str, str] = {}
    for name, value in dotenv_values(stream=StringIO(read_text(file)), interpolate=False).items():
        values[name] = given.get(name) or expanded(value or "", f"{file}: {name}", {**values, **given})
    return {**given, **values}

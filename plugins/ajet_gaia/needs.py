"""Whether a server is on, and why not.

Invariant: nothing is asked over a network to find out; a server that is off says what would turn it on.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from ajet_gaia.server import GaiaServer

ENV_TEMPLATE = Path(__file__).with_name("env_template")
"""Every variable that a server reads, to be filled in."""
OLDER = "BROWSERUSE_LLM_"
"""How AWorld's env template begins the names of browser-server's."""
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


def why_off(
    server: GaiaServer,
    variables: Mapping[str, str],
    *,
    network: bool,
    corpus: bool,
) -> str:
    """Why a server is off, in a sentence for whoever calls one of its tools; "": it is on. `network`: whether addresses
    outside may be asked; `corpus`: whether one is given."""
    if server.corpus and corpus:
        return ""
    if server.only_corpus:
        return f"{server.name} is off: it needs a corpus, and none is given"
    missing = [name for name in server.variables if not variables.get(name)]
    reasons = [f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"] if missing else []
    missing = [name for name in server.executables if find_program(name, variables) is None]
    reasons += [f"the program {name} is not installed" for name in missing]
    if server.network and not network:
        reasons.append("the network is off here")
    if not reasons:
        return ""
    instead = "; a corpus would do instead" if server.corpus else ""
    return f"{server.name} is off: {'; '.join(reasons)}{instead}"


def find_program(executable: str, variables: Mapping[str, str]) -> str | None:
    """The path of a program; a browser's may be named by the variable CHROMIUM."""
    if executable == "chromium":
        return variables.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    return shutil.which(executable)


def with_older_names(variables: Mapping[str, str]) -> dict[str, str]:
    """These, and where one is set by its older name alone, as AWorld's env template has it, by the one that is read."""
    made = dict(variables)
    for name, value in variables.items():
        if name.startswith(OLDER):
            newer = f"BROWSER_LLM_{name.removeprefix(OLDER)}"
            made[newer] = made.get(newer) or value
    return made

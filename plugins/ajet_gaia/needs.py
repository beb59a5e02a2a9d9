"""Decides whether a server can be switched on, or why not.

Invariants: the decision needs no network. The reason names the missing condition.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from ajet_gaia.server import GaiaServer

ENV_TEMPLATE = Path(__file__).with_name("env_template")
"""Template with every variable read by a server."""
OLDER = "BROWSERUSE_LLM_"
"""Prefix of the variables of browser-server in AWorld's env template."""
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


def why_off(
    server: GaiaServer,
    variables: Mapping[str, str],
    *,
    network: bool,
    corpus: bool,
) -> str:
    """Return why a server is off, as an answer to callers of its tools, or "" if it is on.

    Args:
        variables: environment variables.
        network: True if public addresses are allowed.
        corpus: True if a corpus is configured.
    """
    if server.corpus and corpus:
        return ""
    if server.only_corpus:
        return f"the server {server.name} is off: it needs a corpus (a set of documents to search), and none is set"
    missing = [name for name in server.variables if not variables.get(name)]
    reasons = [f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"] if missing else []
    missing = [name for name in server.executables if find_program(name, variables) is None]
    reasons += [f"the program {name} is not installed" for name in missing]
    if server.network and not network:
        reasons.append("the network is switched off for this environment")
    if not reasons:
        return ""
    alternative = "; a corpus (a set of documents to search) would replace it" if server.corpus else ""
    return f"the server {server.name} is off: {'; '.join(reasons)}{alternative}"


def find_program(executable: str, variables: Mapping[str, str]) -> str | None:
    """Return the path of a program of this machine, or None if it is missing.

    "chromium" stands for any of the CHROMIUMS, or for the path in the variable CHROMIUM.
    """
    if executable == "chromium":
        return variables.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    return shutil.which(executable)


def with_older_names(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the variables in which BROWSERUSE_LLM_X also sets BROWSER_LLM_X, unless that has a value.

    AWorld's env template uses the older prefix.
    """
    merged = dict(variables)
    for name, value in variables.items():
        if name.startswith(OLDER):
            newer = f"BROWSER_LLM_{name.removeprefix(OLDER)}"
            merged[newer] = merged.get(newer) or value
    return merged

"""The first program inside a sandbox with a long-running command: sets user and limits, then executes the command.

The argument is JSON. Variables come on a descriptor, since arguments are visible to every user. Invariant: no untrusted
code runs as another user than the sandbox's own.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from ajet_sandbox.inside.open_rule import restrict_opening


def main() -> None:
    """Read the settings, set user and limits, and execute the command with the given variables.

    The settings are the JSON argument; `environment` is the descriptor with the variables.
    """
    settings = json.loads(sys.argv[1])
    if settings["uid"] is not None:
        os.setgroups([])
        os.setresgid(settings["uid"], settings["uid"], settings["uid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])
    limits = {"CORE": 0, "NOFILE": settings["files"], "AS": settings["memory"], "FSIZE": settings["disk"]}
    if settings["processes"]:
        limits["NPROC"] = settings["processes"]
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    os.chdir(settings["folder"])
    with open(settings["environment"], "rb") as file:
        environment = json.load(file)
    restrict_opening(settings["projects"])
    os.execvpe(settings["command"][0], settings["command"], environment)

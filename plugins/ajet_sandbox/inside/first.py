"""The first program inside, for a program that stays: it takes on its user and limits and becomes the command that it
was given. Its argument is JSON, and its variables come on a descriptor: arguments are seen by all.

Invariant: no code of anybody else's runs as another user than the sandbox's own.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from ajet_sandbox.inside.open_rule import restrict_opening


def main() -> None:
    told = json.loads(sys.argv[1])
    if told["uid"] is not None:
        os.setgroups([])
        os.setresgid(told["uid"], told["uid"], told["uid"])
        os.setresuid(told["uid"], told["uid"], told["uid"])
    limits = {"CORE": 0, "NOFILE": told["files"], "AS": told["memory"], "FSIZE": told["disk"]}
    if told["processes"]:
        limits["NPROC"] = told["processes"]
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    os.chdir(told["folder"])
    with open(told["environment"], "rb") as given:
        environment = json.load(given)
    restrict_opening(told["projects"])
    os.execvpe(told["command"][0], told["command"], environment)

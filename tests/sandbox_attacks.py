"""The table of attacks, as a program: `python tests/sandbox_attacks.py MECHANISM WITH_CGROUPS`; a verdict a line, as
JSON. It imports no more than a sandbox needs, so that any user of the machine can run it."""

from __future__ import annotations

import json
import sys
import threading

from ajet.environment.sandbox.choose import open_sandbox
from tests.support.attack_targets import targets
from tests.support.sandbox_attacks import LIMITS, run_attacks


def verdicts(
    mechanism: str, *, cgroups: bool = True, names: list[str] | None = None, image: str | None = None
) -> dict[str, tuple[str, str]]:
    """What came of each attack: (outcome, detail)."""
    with targets() as made:
        box = open_sandbox(mechanism, LIMITS, cgroups=cgroups, image=image)
        try:
            found = run_attacks(box, made, names)
        finally:
            box.close()
    return {each.attack: (each.outcome, each.detail) for each in found}


if __name__ == "__main__":
    done = threading.Event()
    others = [threading.Thread(target=done.wait) for _ in range(LIMITS.processes + 10)]
    for each in others:  # a user has more processes than a sandbox may
        each.start()
    try:
        print(json.dumps(verdicts(sys.argv[1], cgroups=sys.argv[2] == "True")))
    finally:
        done.set()

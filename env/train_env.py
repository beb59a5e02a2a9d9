"""`python -m env.train_env --docker_dir=NAME`: starts an environment for other machines, as AWorld's page has it.

NAME is one that comes with ajet (`gaia-mcp-server` is `gaia-local`), or a YAML file; no container is started. The lines
that it prints are for the machine that trains.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ajet.cli.launcher import main

FLAG = "--docker_dir"


def words(arguments: Sequence[str]) -> list[str]:
    """The command of ajet's that these arguments mean."""
    name, rest, given = "gaia-mcp-server", [], iter(arguments)
    for word in given:
        if word == FLAG:
            name = next(given, name)
        elif word.startswith(f"{FLAG}="):
            name = word.partition("=")[2]
        else:
            rest.append(word)
    return ["env", "up", name, "--host", "0.0.0.0", *rest]


if __name__ == "__main__":
    main(words(sys.argv[1:]))

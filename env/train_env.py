"""`python -m env.train_env --docker_dir=NAME`: start an environment for other machines, as on AWorld's page.

NAME is an environment shipped with ajet (`gaia-mcp-server` is `gaia-local`), or a YAML file. No container is started.
The printed lines are for the training machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ajet.cli.launcher import main

FLAG = "--docker_dir"


def words(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of the equivalent `ajet` command."""
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

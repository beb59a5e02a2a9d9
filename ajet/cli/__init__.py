"""The `ajet` command: one small file per command for parsing, one call, and the output of the result.

Input: the arguments. Output: an exit code (0 done, 2 a user error, 1 a bug, 130 Ctrl-C, 75 SIGTERM or SIGHUP).
Invariant: `ajet --help` imports neither torch, ray, transformers, datasets, hydra nor pydantic. Commands import heavy
packages inside their functions.
"""

import sys

# Python 3.6 parses this file and all that is imported before it.
if sys.version_info < (3, 11) or sys.platform == "win32":
    running = f"this is Python {sys.version.split()[0]} on {sys.platform}"
    sys.exit(f"ajet needs Python 3.11 or newer on Linux or macOS (on Windows: WSL), and {running}.")

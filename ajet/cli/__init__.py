"""The `ajet` command: one small file per command, each of which parses, calls one function and shows the result.

What enters: the arguments. What leaves: an exit code (0 done, 2 the person can mend it, 1 a bug, 130 Ctrl-C, 75
SIGTERM or SIGHUP).
Invariant: `ajet --help` imports neither torch, ray, transformers, datasets, hydra nor pydantic: everything heavy is
imported inside the command that needs it.
"""

"""The `ajet` command: one small file per command, which parses, calls one function and shows the result.

Input: the arguments. Output: an exit code (0 done, 2 a user error, 1 a bug, 130 Ctrl-C, 75 SIGTERM or SIGHUP).
Invariant: `ajet --help` imports neither torch, ray, transformers, datasets, hydra nor pydantic; commands import heavy
packages inside their functions.
"""

"""The `ajet` command: one small file per command for parsing, one call, and the output of the result.

Input: the arguments. Output: an exit code (0 done, 2 a user error, 1 a bug, 130 Ctrl-C, 75 SIGTERM or SIGHUP).
Invariant: `ajet --help` imports neither torch, ray, transformers, datasets, hydra nor pydantic. Commands import heavy
packages inside their functions.
"""

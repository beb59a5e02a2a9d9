"""Sandboxes for model-written code, without access to the machine's files, network, processes or secrets.

Input: code, commands, files. Output: the result of each call, and files. Invariants: as in `ajet.schema.sandbox`.
A mechanism is one way to build a sandbox (bubblewrap, a container, Landlock). `choose` tests each mechanism on the
machine, and never selects a weaker mechanism automatically. The resident is the Python process inside that forks for
each call. The line is the socket or pipe between the resident and the host process.
"""

"""Sandboxes for untrusted code, without this machine's files, network, processes or secrets.

In: code, commands, files. Out: the result of each call, and files. Invariants: those of `ajet.schema.sandbox`; `choose`
tests each mechanism on this machine, and never selects a weaker one by itself.
"""

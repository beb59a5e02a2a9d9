"""Sandboxes for untrusted code, without access to the machine's files, network, processes or secrets.

Input: code, commands, files. Output: the result of each call, and files. Invariants: as in `ajet.schema.sandbox`.
`choose` tests each mechanism on the machine, and never selects a weaker mechanism automatically.
"""

"""Sandboxes: places for code that nobody has read, without this machine's files, network, processes or secrets.

What enters: code, commands, files. What leaves: how each call ended, and files. Invariants: those of
`ajet.schema.sandbox`; what this machine can hold, `choose` finds out by trying; nothing weaker is ever chosen by
itself.
"""

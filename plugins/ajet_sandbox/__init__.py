"""A place for code that nobody has read: with limits, without this machine's files, network, processes or secrets.

What enters: code, commands, files. What leaves: how each call ended, and files. Invariants: see `contract`; what this
machine can hold, `probe` finds out by trying; nothing weaker is ever chosen by itself.
"""

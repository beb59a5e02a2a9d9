"""Tool servers with the names known to agents of the GAIA benchmark, above all AWorld's environment.

It takes server names and the available resources (variables, a network, a corpus). For each server it returns the
tools, the reason if the server is off, and the start command. `prepare` creates the environments of the servers'
packages. The programs are in `servers`, without imports of ajet. Invariants: a disabled server stays listed and answers
with the reason. Only an unknown name is an error. Only `prepare` starts a process.
"""

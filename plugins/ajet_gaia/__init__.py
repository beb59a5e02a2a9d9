"""Tool servers for the GAIA benchmark, with the names that AWorld's agents expect.

It takes server names and the available resources (variables, network, corpus). For each server it returns the tools,
the reason if the server is off, and the start command. `prepare` creates the virtual environments of the servers'
packages. The programs are in `servers`, without imports of ajet. Invariants: a server that is off stays listed and
answers with the reason. Only an unknown name is an error. Only `prepare` starts a process.
"""

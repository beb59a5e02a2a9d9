"""Programs running inside a sandbox with only the standard library of the sandbox's Python.

The programs are passed as text or bytecode (`ajet_sandbox.interpreter`). They import only each other and
`ajet.schema.frames`.
Invariant: no program trusts the sandbox after user code ran. The host trusts none of the programs.
"""

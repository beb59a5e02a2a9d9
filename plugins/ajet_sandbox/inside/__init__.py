"""Programs that run inside a sandbox, with only the standard library of the sandbox's Python.

They are passed as text or bytecode (`ajet_sandbox.interpreter`). They import only each other and `ajet.schema.frames`.
Invariant: no program trusts anything in the sandbox after model-written code ran. The host trusts none of the programs.
"""

"""Programs that run inside a sandbox, with the standard library of its Python alone.

They are passed as text or bytecode (`ajet_sandbox.bundle`) and import only each other and `ajet.schema.frames`.
Invariant: no program trusts the sandbox after user code ran; the host trusts none of the programs.
"""

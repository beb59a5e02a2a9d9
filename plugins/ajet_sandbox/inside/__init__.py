"""What runs within a sandbox: programs of the standard library alone, on whatever Python is bound there.

They are handed over as text or compiled code (`ajet_sandbox.bundle`) and import nothing of ours but each other and
`ajet.schema.frames`. Invariant: none of them trusts what user code did to the sandbox; the host trusts none of them.
"""

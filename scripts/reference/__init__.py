"""`python -m scripts.reference [--check]`: the files that are generated from the code.

Invariant: each file says what the schema, the command line, the descriptors or the routes say. `make check` compares.
No command of ajet imports this package, and it is not in the wheel.
"""

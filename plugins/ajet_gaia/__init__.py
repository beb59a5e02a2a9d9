"""Tool servers by the names that agents of the GAIA benchmark know, AWorld's environment first of all.

What enters: names, and what there is (variables, a network, a corpus). What leaves: for each server its tools, whether
it is on or why not, and the command that starts it; `prepare` makes the environments of their packages. The programs
themselves are in `servers`, and know nothing of ajet. Invariants: a server that is off stays listed and answers why;
only a name in no table is an error; nothing here starts a process but `prepare`.
"""

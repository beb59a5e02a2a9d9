"""What the commands do (launch, debug, serve, chat, ...): each a file that reads from top to bottom, or a folder.

Invariant: a command wires rooms together and states their order; what a step is, `ajet.train` says.
"""

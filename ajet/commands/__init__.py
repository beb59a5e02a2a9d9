"""The code behind the commands (launch, debug, serve, chat, ...), one file or folder per command.

Invariant: a command connects the packages and states the order of their steps. `ajet.train` defines a training step.
"""

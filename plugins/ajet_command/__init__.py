"""Agents run as a command line: one process tree for each episode.

In: settings of a YAML section, a task, an endpoint. Out: the command's output and exit. Invariants: the command gets
the episode's address and key in its environment, never in arguments; all its processes end with it, even if ajet is
killed; output and folder are bounded.
"""

"""Agents that are a command line: one process tree an episode, and nothing of it left afterwards.

In: the settings of a YAML section, a task, an endpoint. Out: what the command printed and how it ended. Invariants:
the command gets the episode's address and key by its environment, never by its arguments; whatever it starts ends with
it, also when ajet is killed; its output and its folder are bounded.
"""

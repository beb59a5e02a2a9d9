"""Tasksets of `verifiers`, played in an environment of their own as agents that are a command.

In: the section `verifiers` of a YAML. Out: tasks, and episodes whose model calls went through the gateway. Invariant:
their package is in an environment that its requirements ask for, never in ajet's process; what failed there outside the
model is the failure of whom it was, never a reward.
"""

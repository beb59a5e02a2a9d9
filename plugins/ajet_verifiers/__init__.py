"""Tasksets of the package `verifiers`, run as command agents in an environment of their own.

In: the section `verifiers` of a YAML. Out: tasks, and episodes with model calls through the gateway. Invariant: the
package lives in an environment made from its requirements, never in ajet's process; a failure outside the model is
attributed to its boundary, never a reward.
"""

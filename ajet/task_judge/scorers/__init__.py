"""Scorers: functions from an answer and what it is compared with to a number, each with a name.

What enters: what a `ScorerCall` has, by the names of a function's parameters. What leaves: whatever `judgement` reads.
Invariant: a scorer that has nothing to compare with gives no score, and is not asked; which ones were chosen for an
episode, and what each gave, stands in its verdict.
"""

from ajet.task_judge.scorers.names import MCPScorerFactory, scorer

__all__ = ["MCPScorerFactory", "scorer"]

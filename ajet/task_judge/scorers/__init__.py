"""Named scorers: functions from an answer and a reference to a score.

Input: values of a `ScorerCall` by parameter name. Output: any value accepted by `judgement`. Invariant: a scorer
without a reference is not called and gives no score. The verdict records the chosen scorers and their scores.
"""

from ajet.task_judge.scorers.names import MCPScorerFactory, scorer

__all__ = ["MCPScorerFactory", "scorer"]

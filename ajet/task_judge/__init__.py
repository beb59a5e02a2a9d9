"""Task and outcome to a verdict: a reward, or no score, and why.

What enters: the task and what its workflow returned. What leaves: a `Verdict`, or a JudgeFailure. Invariant: a reward
is a finite number that the workflow or the judge gave; a judge that fails or cannot decide never becomes a 0.
`scorers` have names, `extraction` and `math_equality` hold what judges are made of; `math_judge` is one that is ready.
"""

from ajet.task_judge.base_judge import BaseJudge, Judgement
from ajet.task_judge.judge import Judge, Judging
from ajet.task_judge.registry import open_judge
from ajet.task_judge.scorers import MCPScorerFactory, scorer

__all__ = ["BaseJudge", "Judge", "Judgement", "Judging", "MCPScorerFactory", "open_judge", "scorer"]

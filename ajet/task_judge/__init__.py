"""Judges (reward functions): turn an attempt into a verdict with a reward, or without a score and with the reason.

Input: the task and the workflow's output. Output: a `Verdict` or a JudgeFailure. Invariant: a reward is a finite number
from the workflow or the judge. A judge that fails or cannot decide never yields 0. `scorers` holds named scorers,
`extraction` and `math_equality` their common functions, `math_judge` a complete judge.
"""

from ajet.task_judge.base_judge import BaseJudge, Judgement
from ajet.task_judge.judge import Judge, Judging
from ajet.task_judge.registry import open_judge
from ajet.task_judge.scorers import MCPScorerFactory, scorer

__all__ = ["BaseJudge", "Judge", "Judgement", "Judging", "MCPScorerFactory", "open_judge", "scorer"]

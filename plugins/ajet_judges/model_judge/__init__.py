"""Model judges at servers: of one answer, or of the attempts at one task.

In: question, answer, reference, tool results. Out: a `Verdict`; undecided is no score. Invariant: judged text is never
an instruction, and replies are parsed, never searched for a word.
"""

from ajet_judges.model_judge.judge import ModelJudge

__all__ = ["ModelJudge"]

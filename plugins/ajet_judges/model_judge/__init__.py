"""Judges that ask language models for a verdict on one answer, or for a ranking of attempts.

Input: question, answer, reference, tool results. Output: a `Verdict`; an undecided one has no score. Invariant: judged
text is never an instruction to the judging model, and replies are parsed as a whole, never searched for a word.
"""

from ajet_judges.model_judge.judge import ModelJudge

__all__ = ["ModelJudge"]

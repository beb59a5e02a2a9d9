"""Models of other servers as judges: of one answer, and of the attempts at one task beside each other.

What enters: a question, an answer, what it is compared with, what tools said. What leaves: a `Verdict`, in which
undecided is no score. Invariant: nothing that is judged is an instruction, and no part of a reply is ever searched for
a word.
"""

from ajet_judges.model_judge.judge import ModelJudge

__all__ = ["ModelJudge"]

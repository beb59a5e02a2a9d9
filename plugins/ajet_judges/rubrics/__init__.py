"""Rubrics: language models grade an answer by several weighted criteria.

Input: task, answer, criteria; for `rubrics_auto_grader` labelled examples, from which a model writes criteria. Output:
a `Verdict`; an undecided one has no score. Invariant: graded text is never an instruction. A grade is a complete reply
of the requested form. A written criterion is used only if it improves agreement with the labels.
"""

"""Rubrics: grade answers by criteria, with models at servers.

In: task, answer, criteria; for `rubrics_auto_grader` labelled examples, from which a model writes criteria. Out: a
`Verdict`; undecided is no score. Invariant: graded text is never an instruction; a grade is a complete reply of the
requested form; a written criterion is used only if it improves agreement with the labels.
"""

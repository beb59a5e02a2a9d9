"""Rubrics: answers graded criterion by criterion, by models of other servers.

What enters: a task, an answer, criteria; for `rubrics_auto_grader` labelled examples, of which a model makes the
criteria. What leaves: a `Verdict`, in which undecided is no score. Invariant: what is graded is never an instruction; a
grade is a whole reply of the form that was asked for; and a criterion that a model wrote is used only where the labels
agree better with it than without.
"""

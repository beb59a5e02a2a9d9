"""`ajet eval`: play held-out tasks with several models as in training, and compare the scores.

Input: an experiment and models. Output: a record for each model, readable by viewer and proof, and the scores.
Invariant (DESIGN decision 14): gateway, workflow, judge and record are the same as in training. Attempts in a record of
the same evaluation are not played again.
"""

"""`ajet eval`: runs held-out tasks with several models as in training, and compares their scores.

Input: an experiment and models. Output: for each model a record (run folder) with the same files as a training run's,
and the scores. Invariant (DESIGN decision 14): gateway, workflow, judge and record are the same as in training.
Attempts that a record of the same evaluation contains are not run again.
"""

"""`ajet eval`: play held-out tasks with several models on the path of training, and compare their scores.

Input: an experiment and models. Output: a record for each model, which viewer and proof read, and the scores.
Invariant (DESIGN decision 14): gateway, workflow, judge and record are those of training; attempts that a record of the
same evaluation has are not played again.
"""

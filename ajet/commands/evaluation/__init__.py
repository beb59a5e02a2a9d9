"""`ajet eval`: models over held-out tasks, by the path of training, and what lies between them.

What enters: an experiment and the models to play. What leaves: a record a model, which viewer and proof read, and their
scores. Invariant (DESIGN decision 14): gateway, workflow, judge and record are those of training; what is played is the
attempts that no record of the same evaluation has.
"""

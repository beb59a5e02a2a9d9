"""`ajet compare`: the training curves, held-out results and costs of groups of recorded runs, such as one group per
algorithm with a run per seed."""

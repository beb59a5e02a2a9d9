"""The losses that `trainer_common.algorithm.policy_loss` names: one a file, each with its paper and its formula.

In: log-probabilities and advantages of trained tokens. Out: a loss for each. Invariant: a loss sees tokens, and never
rows, micro batches or ranks; what it has to know of the reply that a token belongs to is handed to it (`contract`).
"""

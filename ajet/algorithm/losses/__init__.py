"""Losses selectable by `trainer_common.algorithm.policy_loss`. Each file holds a loss with its paper and formula.

Input: log-probabilities and advantages of trained tokens. Output: a loss per token. Invariant: a loss sees tokens,
never rows, micro batches or ranks. Statistics of a token's reply are passed in through `contract.LossInputs`.
"""

"""Sampler processes: `ajet sample`, and the colocated sampler of `trainer_common.mode: async`."""

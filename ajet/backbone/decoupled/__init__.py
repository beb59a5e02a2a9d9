"""The trainer's side of a shared store: announces policies to samplers and selects closed groups for a step.

A position is a task's place in the training order, and a closed group is a complete one. Invariant: the package does
not depend on how the update is computed. Both `ajet.train.sources.store` (a backbone in the run's own process) and
`ajet_ray.store_tickets` use it.
"""

"""The trainer's side of a shared store that samplers fill: what is announced, and which closed groups a step gets.

In: a store that many processes share, the settings, closed groups. Out: policies for samplers, groups that are fresh
enough for a step. Invariant: nothing here knows who computes the update; `ajet.train.sources.store` (a backbone in
the run's own process) and `ajet_ray.store_tickets` both stand on it.
"""

"""The machines below verl: Ray, started or joined, its processes' logs, GPUs that must be free, and what is left at the
end.

In: verl's config. Out: a cluster for the time of a run. Invariant: nothing that a run started lives on after it.
"""

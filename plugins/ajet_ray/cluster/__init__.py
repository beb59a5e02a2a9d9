"""The machines below verl: Ray (started or joined), logs of its processes, free GPUs, and the removal of leftovers.

In: verl's config. Out: a cluster for the run. Invariant: no process or file started by the run outlives the run.
"""

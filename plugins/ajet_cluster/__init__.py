"""Render an experiment for a cluster's scheduler: a batch script for Slurm, a RayJob for KubeRay.

In: an `Experiment` for the verl backbone. Out: a text for `sbatch` or `kubectl apply`; rendering starts no job.
Invariants: rendering refuses what the run would refuse; the text names variables and contains no secret; all started
processes end with the run.
"""

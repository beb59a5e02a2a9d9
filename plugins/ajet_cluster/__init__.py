"""cluster: an experiment as what a cluster's own scheduler starts: a batch script for Slurm, a RayJob for KubeRay.

What enters: an `Experiment` for the verl backbone. What leaves: a text, to be looked at, changed and handed to `sbatch`
or `kubectl apply` by the person; nothing is started here. Invariants: what the run would refuse is refused while
rendering; no secret is in the text, whose variables are named only; all that the text starts ends with the run.
"""

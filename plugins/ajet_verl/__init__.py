"""verl on Ray: what its trainer is given, its servers as our engine, our credit and loss in its steps.

In: an experiment. Out: verl's whole config, and what verl's processes need of ours. `launch` is what a run asks of it,
`train` what happens in the run's own process, `agent` and `trainer` what happens in verl's. Invariants: verl's public
extension points, but for the hooks in `trainer.hooks` and `ajet_ray.cluster.logs`, each guarded by a test; nothing of
verl is changed while it runs, but on machines without an accelerator (`cpu`); only the process that the person started
writes the record (`ajet_ray.record`), from what the others post to it. Nothing is imported here: each process of verl's
and vLLM's imports something from below, and most need no more of it.
"""

"""The verl backbone: verl's trainer and servers on Ray, with ajet's engine, credit assignment and loss.

It turns an experiment into verl's complete config, plus the code run in verl's processes. `launch` serves the command
line, `train` runs in the run's own process, `agent` and `trainer` run in verl's processes. Invariants: ajet uses verl's
public extension points, except for the hooks in `trainer.hooks` and `ajet_ray.cluster.logs`, each guarded by a test.
verl is patched at run time only on machines without an accelerator (`cpu`). Only the process started by the user writes
the run's folder (`ajet_ray.record`), from messages of the other processes. This module imports nothing, since each
process of verl and vLLM imports only a few submodules.
"""

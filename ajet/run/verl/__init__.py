"""The verb `train` on verl: the same experiment, with verl's Ray processes around it.

In: an experiment and its run directory. Out: a trained run, recorded as on the local backbone. Invariants: tasks,
workflow, gateway, judge and episodes are those of every backbone (`host`); only the process that the person started
writes the record (`record`), from what the others post to it; verl is imported in verl's processes alone.
"""

from __future__ import annotations

from ajet.run.verl.train import train_on_verl

__all__ = ["train_on_verl"]

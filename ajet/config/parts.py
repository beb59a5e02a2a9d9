"""The small parts that a YAML chooses by name: trackers, isolations and stores that come with ajet, with their code.

Invariant: these tables are the only lists of them. Schema, documentation and the rooms that own the code read them; a
reference to a class of the user's is taken wherever a name is. They name code as text, since settings are checked
without it (`references.class_of` finds it); a contract test holds each line against its class.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """What is known of one without importing it."""

    code: str
    """A reference to its class; empty where this version has none."""
    variables: tuple[str, ...] = ()
    """Environment variables that it reads, which a job on a cluster must get."""
    interactive: bool = True
    """Whether it takes what is defined in the running program or notebook."""


TRACKERS = {
    "console": Part("ajet.record.trackers.console->ConsoleTracker"),
    "tensorboard": Part("ajet.record.trackers.tensorboard->TensorboardTracker"),
    "wandb": Part("", variables=("WANDB_API_KEY",)),
    "swanlab": Part("", variables=("SWANLAB_API_KEY",)),
    "mlflow": Part("", variables=("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN")),
}
ISOLATIONS = {
    "thread": Part("ajet.rollout.isolation.thread->ThreadIsolation"),
    "loop": Part("ajet.rollout.isolation.loop->LoopIsolation"),
    "process": Part("ajet.rollout.isolation.process->ProcessIsolation", interactive=False),
}
STORES = {"run_directory": Part("ajet.store.run_store->RunStore")}

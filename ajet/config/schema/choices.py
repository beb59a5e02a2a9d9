"""Values that are a known name or a reference to something of the user's own, and the names that are known: trackers,
isolations and stores that come with ajet, with their code.

Invariant: these tables are the only lists of them. Schema, documentation and the rooms that own the code read them; a
reference to a class of the user's is taken wherever a name is. They name code as text, since settings are checked
without it (`references.class_of` finds it); a contract test holds each line against its class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


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


def is_reference(text: str) -> bool:
    """Whether `text` has the form `file.py->Class` or `pkg.module:Class`."""
    left, arrow, right = text.rpartition("->")
    if not arrow:
        left, arrow, right = text.rpartition(":")
    return bool(arrow and left and right.strip().isidentifier())


def name_or_reference(names: Sequence[str], example: str) -> Callable[[str], str]:
    """A validator: one of `names`, or a reference such as `example`."""

    def check(text: str) -> str:
        if text in names or is_reference(text):
            return text
        near = get_close_matches(text, names, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"one of {', '.join(names)}, or a reference such as {example}{hint}")

    return check

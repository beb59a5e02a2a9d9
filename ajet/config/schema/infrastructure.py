"""The sections `store`, `debug`, `gateway` and `serve`: where a run keeps, plays and serves its episodes."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import ONLY_SERVED, SERVE, SHARED_STORES, Section, key, nowhere

_SHARED = ("store.type", SHARED_STORES)


class Store(Section):
    """The ledger: which task is leased, which group is closed, what a step has used."""

    type: str = key(
        "run_directory",
        "Where it is kept: {names}, or a reference to a store of your own. The folder of the run is for one process, a "
        "file of SQLite for those of one machine, MongoDB for any number (docs/store.md).",
        part="store",
    )
    uri: str | None = key(
        None,
        "Its address: `sqlite:PATH` (null: `store.sqlite` in the folder of the run), or `mongodb://HOST:PORT/DATABASE` "
        "(null: this machine, port 27017; without a database it is named as the run). User and password are in the "
        "environment: `AJET_STORE_USER`, `AJET_STORE_PASSWORD`.",
        training=False,
        when=_SHARED,
    )
    lease_seconds: float = key(
        120.0,
        "After so long without a word of the process that plays a task, another may play it. What the trainer plays "
        "itself is played again when it is started again.",
        training=False,
        when=_SHARED,
        gt=0,
    )
    unreachable_timeout: float = key(
        600.0,
        "Seconds that a run waits for a store that is out of reach, of `--from-store` and `ajet sample`, too. Then it "
        "ends with exit code 75, and the same command goes on.",
        training=False,
        gt=0,
    )
    max_attempts: int = key(
        5,
        "A task whose attempts failed so often, or whose players fell silent, is set aside with the reasons.",
        training=False,
        when=_SHARED,
        ge=1,
    )


class Debug(Section):
    """The debug backbone."""

    debug_max_parallel: int = key(4, "Episodes that run at the same time.", ge=1)
    debug_first_n_tasks: int = key(2, "Tasks to play.", ge=1)


class Gateway(Section):
    """Where the workflows' model calls arrive."""

    host: str | None = key(None, "Address to listen on; null is the loopback interface.")
    port: int = key(0, "Port; 0 lets the kernel choose a free one.", ge=0, le=65535)
    idle_timeout: float | None = key(
        600.0,
        "Seconds without a model call after which an episode of `ajet serve` fails; null waits for ever.",
        idle={**nowhere(ONLY_SERVED), SERVE: None},
        gt=0,
    )
    max_calls: int = key(
        16384, "Model calls under way at once; a client that asks for more is told to come back (429).", ge=1
    )
    advertise: str = key("auto", "Host name that clients on other machines and in containers are given.")


class Serve(Section):
    """When a step is made of what clients bring, and how much of one task they may play at once."""

    batch_by: Literal["groups", "tasks", "episodes"] = key(
        "groups",
        "What `data.train_batch_size` counts: complete groups; different tasks with a complete group (further groups "
        "of these are in the same step); or scored episodes in complete groups, `train_batch_size * num_repeat` of "
        "them, however many each group has.",
    )
    batch_seconds: float | None = key(
        None,
        "So long after the first group that can be trained on, a step is made of those that are there; null waits for "
        "the whole batch.",
        gt=0,
    )
    max_per_task: int | None = key(
        None,
        "Episodes of one task that may be under way at once; who asks for one more gets another task, or is told to "
        "come back (429, `task_busy`) where it named this one. Null: `rollout.max_env_worker` alone bounds them.",
        ge=1,
    )

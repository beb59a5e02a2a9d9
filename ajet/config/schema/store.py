"""`store`: the ledger of tasks, episodes and groups."""

from __future__ import annotations

from ajet.config.schema.base import SHARED_STORES, Section, key

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

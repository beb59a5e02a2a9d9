"""`store`: the ledger of tasks, episodes and groups."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from ajet.config.schema.base import Section, key
from ajet.config.schema.choices import STORES, name_or_reference


class Store(Section):
    """The ledger: which task is leased, which group is closed, what a step has used."""

    type: Annotated[str, AfterValidator(name_or_reference(tuple(STORES), "store.py->MyStore"))] = key(
        "run_directory",
        f"Where it is kept: {', '.join(STORES)}, or a reference to a store of your own.",
        kind="reference",
    )

"""A run's one adapter over the model that it began with, as a folder of several adapters: whoever samples with such a
folder answers as both, from one copy of the weights.

Invariant: run and model are only read; the folder holds links, the adapter's files and a table, and is gone afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ajet.engine.adapters import FOLDER, Adapter, Adapters, folder_of
from ajet.schema.errors import UserError

TUNED = "tuned"
"""Name of the adapter, of whatever run: a run's own may be one that peft could not tell from the model's parts."""
_ALONE = "adapter"
"""Where a checkpoint or an export has its one adapter, in peft's layout."""


@contextmanager
def beside_base(model: Path, base: Path) -> Iterator[Path]:
    """`base` with the adapter of the checkpoint or export in `model`. Raises UserError where it has none."""
    adapter = require_adapter(model)
    with TemporaryDirectory(prefix="ajet-base-") as place:
        folder = Path(place)
        for each in base.iterdir():
            if each.name != FOLDER:
                (folder / each.name).symlink_to(each.absolute())
        shutil.copytree(adapter, folder_of(folder, TUNED))
        Adapters([Adapter(TUNED, ("*",))]).write(folder)
        yield folder


def require_adapter(model: Path) -> Path:
    """The one adapter of a checkpoint or export. Raises UserError."""
    adapter = model / _ALONE
    if not (adapter / "adapter_config.json").is_file():
        raise UserError(
            "All weights of this run were tuned: its model and the one that it began with are two.",
            where=str(model),
            expected="the checkpoint of a run with trainer_common.lora.rank, for --with-base",
            do="leave --with-base out, and serve the other one by a server of its own",
        )
    return adapter

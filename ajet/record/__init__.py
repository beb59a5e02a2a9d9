"""Reads and writes the record of a run: the folder in `launcher_record` with logs, metrics, episodes, checkpoints.

Invariant: a process may be killed at any byte. A reader then still finds only complete entries, and the complete
entries are enough to resume. Secrets are never written.
"""

from typing import TYPE_CHECKING

from ajet.record.checkpoint import Checkpoint
from ajet.record.checkpoints import Checkpoints
from ajet.record.episodes import EpisodeFiles, read_recorded
from ajet.record.run_directory import RunDirectory
from ajet.record.status import read_status
from ajet.schema.lazy_names import load_lazily

if TYPE_CHECKING:
    from ajet.record.frames import RecordedRun
    from ajet.record.frames import open_run as open

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "EpisodeFiles",
    "RecordedRun",
    "RunDirectory",
    "open",
    "read_recorded",
    "read_status",
]

__getattr__ = load_lazily(__name__, {"frames": "RecordedRun, open_run:open"})

"""The output of verl's processes, with a log file per process, from every node.

Invariant: Ray sends the lines of all nodes to the run's process. The lines are written to the run's `logs/`, not to the
screen. Ray has no public hook, so a private hook is used, covered by a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ajet.record.files import read_tail
from ajet.record.logs import log_name

HANDLER = "ray_print_logs"
"""Ray's own handler for printing to the screen."""
NOISE = re.compile(r"target_num_threads \d+ should not exceed|Task was destroyed but it is pending")
"""Lines repeated hundreds of times by verl's libraries."""
_LINE = 160
"""Maximum length of a log line on the screen, in characters."""
_TAIL = 1 << 16
"""Number of bytes of a log searched for the last line."""


def find_last_line(folder: Path) -> tuple[str, str]:
    """Return the file name and the last line of the most recently written log, or ("", "") without logs.

    Args:
        folder: the run's `logs/`.
    """
    files = [path for path in folder.glob("*.log") if path.is_file()]
    if not files:
        return "", ""
    newest = max(files, key=lambda file: file.stat().st_mtime)
    with newest.open("rb") as log:  # a log may be long, so only its end is read
        lines = read_tail(log, _TAIL).decode(errors="replace").strip().splitlines()
    return newest.name, lines[-1].strip()[:_LINE] if lines else ""


@contextmanager
def collect_logs(folder: Path, redact: Callable[[str], str]) -> Iterator[None]:
    """Write the output of Ray's processes to one log file per process while the block runs.

    Enter the block after `ray.init`.

    Args:
        folder: the run's `logs/`.
        redact: removes secrets from a line.
    """
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

    folder.mkdir(parents=True, exist_ok=True)
    files: dict[tuple[str, str], IO[str]] = {}

    def write(batch: dict[str, Any]) -> None:
        """Append lines of one process to its log file. Ray calls this with each batch of lines from any node."""
        if batch.get("pid") == "autoscaler":  # Ray's messages about the cluster's size
            return
        role = batch.get("actor_name") or batch.get("task_name") or "ray"
        source = (
            re.sub(r"0x[0-9a-f]+|\d+$", "", role).strip("-_ "),  # without the number or address of the actor
            f"process {batch.get('pid')} on {batch.get('ip')}",
        )
        if source not in files:
            # Processes of one role get numbered files.
            rank = sum(role_and_process[0] == source[0] for role_and_process in files)
            files[source] = (folder / log_name(folder.parent, source[0], rank)).open("a", buffering=1)
            files[source].write(f"{role}: {source[1]}\n")
        for line in batch["lines"]:
            if not NOISE.search(line):
                files[source].write(redact(line) + "\n")

    dispatcher.remove_handler(HANDLER)
    dispatcher.add_handler("ajet_logs", write)
    try:
        yield
    finally:
        dispatcher.remove_handler("ajet_logs")
        for file in files.values():
            file.close()

"""What the command line says about a launch beyond the experiment itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.store import Address


@dataclass(frozen=True)
class LaunchOptions:
    """Flags of `ajet --conf …`."""

    fresh: bool = False
    """Start anew in the experiment's folder, whatever it holds."""
    resume: str | None = None
    """auto, never or a checkpoint's path; None leaves it to `trainer_common.resume`."""
    flags: tuple[str, ...] = ()
    """Names of `Plugin.launch_flags`."""
    debug_tags: str = ""
    """Breakpoints to stop at, "TAG1|TAG2"."""
    services: tuple[str, ...] = ()
    """Names of `--with-NAME`."""
    prefix: str = ""
    """Before the names of the services' logs."""
    dry_run: bool = False
    skip_check_avail_gpu: bool = False
    rehearsal: bool = True
    """Try an update of the longest samples before step 1 (local and serve)."""
    from_store: Address | None = None
    """Where samplers put what they play; None: the run plays by itself."""
    traceback: bool = False
    """Show the traceback of a user's error too."""

"""`ajet status`: print the status of a run once, or redraw the status on a terminal.

Invariant: only a `LiveStatus` is shown. A terminal is redrawn until the run has ended, or Ctrl-C.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ajet.record.checkpoints import checkpoints_of
from ajet.record.console import counted, printable, wrap_between_words
from ajet.record.live_screen import live_screen
from ajet.record.live_status import LiveStatus, read_live_status

EVERY_S = 1.0
BAR = 24
"""Characters of the longest bar of the histogram."""


def show_status(folder: Path, console: Console, *, once: bool) -> None:
    """Print the status of the run in `folder`; on a terminal, redraw it every second until the run ends.

    Args:
        once: True to print it once only.

    Raises:
        UserError: The record is damaged.
    """
    checkpoints = checkpoints_of(folder)
    live_status = read_live_status(folder, checkpoints)
    if once or not console.is_terminal or live_status.state != "running":
        console.print(_render_status(live_status), soft_wrap=True)
        return
    with live_screen(wrap_between_words(_render_status(live_status), console.width), console) as live:
        while live_status.state == "running":
            time.sleep(EVERY_S)
            live_status = read_live_status(folder, checkpoints)
            live.update(wrap_between_words(_render_status(live_status), console.width), refresh=True)


def _render_status(status: LiveStatus) -> Text:
    """Return the status as text for the terminal."""
    return Text(printable("\n".join(list_lines(status))))


def list_lines(status: LiveStatus) -> Iterator[str]:
    """Yield the status as lines of text, without the unknown parts."""
    step_limit = f" of {status.steps}" if status.steps else ""
    is_ended = status.state == status.phase
    phase = (
        f" {_format_age(status.phase_age)} ago" if is_ended else f", {status.phase} for {_format_age(status.phase_age)}"
    )
    yield f"{status.run}: {status.state}{phase}, step {status.step}{step_limit}"
    if status.problem:
        yield f"problem  {status.problem.splitlines()[0]}"
    if status.updated_age is not None and not is_ended:
        processes = f"{status.processes} process{'' if status.processes == 1 else 'es'}"
        yield f"updated  {_format_age(status.updated_age)} ago, {processes}"
    if status.depths:
        yield "depths   " + ", ".join(f"{name} {count}" for name, count in status.depths.items())
    if status.oldest:
        yield "oldest   " + ", ".join(
            f"{name.replace('_', ' ')} {_format_age(age)}" for name, age in status.oldest.items()
        )
    for sampler in status.samplers:
        yield f"sampler  {_describe_sampler(sampler)}"
    if status.rates:
        yield "rates    " + ", ".join(f"{value:.3g} {name.replace('_', ' ')}" for name, value in status.rates.items())
    if status.waits and not is_ended:
        yield f"waits    {status.waits}"
    if status.reward is not None:
        yield f"reward   {status.reward:.3f} in the last step"
    if status.checkpoint is not None:
        yield f"saved    step {status.checkpoint}, {counted(status.behind or 0, 'step')} ago"
    if any(status.staleness):
        yield "episodes trained in the last step, by the age of their oldest call in steps:"
        largest = max(status.staleness.values())
        for steps, count in status.staleness.items():
            yield f"{steps:>12} {'█' * max(1, BAR * count // largest)} {count}"


def _describe_sampler(each: dict[str, Any]) -> str:
    """Return a sampler's leases, policy version, speed and last heartbeat as text."""
    parts = [f"{each['name']}: {counted(each['leases'], 'lease')}"]
    parts += [f"policy {each['version']}"] if "version" in each else []
    parts += [f"{each['episodes_per_second']:.3g} episodes per second"] if "episodes_per_second" in each else []
    return ", ".join([*parts, f"heartbeat {_format_age(each['age'])} ago"])


def _format_age(seconds: float | None) -> str:
    """Return seconds as text in the largest fitting unit, or "some time" for None."""
    if seconds is None:
        return "some time"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"

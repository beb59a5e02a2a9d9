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
    """Print the status. On a terminal without `once`, redraw every second. Raises UserError."""
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


def _render_status(found: LiveStatus) -> Text:
    return Text(printable("\n".join(list_lines(found))))


def list_lines(found: LiveStatus) -> Iterator[str]:
    """Yield the lines of the screen."""
    step_limit = f" of {found.steps}" if found.steps else ""
    is_ended = found.state == found.phase
    phase = (
        f" {_format_age(found.phase_age)} ago" if is_ended else f", {found.phase} for {_format_age(found.phase_age)}"
    )
    yield f"{found.run}: {found.state}{phase}, step {found.step}{step_limit}"
    if found.problem:
        yield f"problem  {found.problem.splitlines()[0]}"
    if found.updated_age is not None and not is_ended:
        processes = f"{found.processes} process{'' if found.processes == 1 else 'es'}"
        yield f"updated  {_format_age(found.updated_age)} ago, {processes}"
    if found.depths:
        yield "depths   " + ", ".join(f"{name} {count}" for name, count in found.depths.items())
    if found.oldest:
        yield "oldest   " + ", ".join(
            f"{name.replace('_', ' ')} {_format_age(age)}" for name, age in found.oldest.items()
        )
    for each in found.samplers:
        yield f"sampler  {_describe_sampler(each)}"
    if found.rates:
        yield "rates    " + ", ".join(f"{value:.3g} {name.replace('_', ' ')}" for name, value in found.rates.items())
    if found.waits and not is_ended:
        yield f"waits    {found.waits}"
    if found.reward is not None:
        yield f"reward   {found.reward:.3f} in the last step"
    if found.checkpoint is not None:
        yield f"saved    step {found.checkpoint}, {counted(found.behind or 0, 'step')} ago"
    if any(found.staleness):
        yield "episodes trained in the last step, by the age of their oldest call in steps:"
        largest = max(found.staleness.values())
        for steps, count in found.staleness.items():
            yield f"{steps:>12} {'█' * max(1, BAR * count // largest)} {count}"


def _describe_sampler(each: dict[str, Any]) -> str:
    parts = [f"{each['name']}: {counted(each['leases'], 'lease')}"]
    parts += [f"policy {each['version']}"] if "version" in each else []
    parts += [f"{each['episodes_per_second']:.3g} episodes per second"] if "episodes_per_second" in each else []
    return ", ".join([*parts, f"heartbeat {_format_age(each['age'])} ago"])


def _format_age(seconds: float | None) -> str:
    if seconds is None:
        return "some time"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"

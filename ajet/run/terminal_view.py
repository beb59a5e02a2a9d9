"""`ajet view RUN --terminal`: a run's curve and its last episodes, without a browser.

Invariant: what is shown is read from the record by the code that the pages use; what a model wrote reaches the terminal
without the control characters that it would obey. It only reads, and ends with the run.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ajet.record.console import between_words, console, printable
from ajet.record.curve import columns_in, held_out_course, text_curve, training_course
from ajet.record.find_run import known_run, newest_run
from ajet.record.live_screen import live_screen
from ajet.record.viewer.episode_table import EpisodeTable
from ajet.record.viewer.library import Library, summary
from ajet.record.viewer.metrics import metrics_after
from ajet.run.tables import STYLES, age
from ajet.schema.errors import UserError

EVERY = 2.0
"""Seconds between two looks at a run that goes on."""
EPISODES = 8
TASK, OUTCOME = (28, 0.3), (20, 0.15)
"""Columns of a task's question, and of why an episode failed: so many, and so much of the width, at most; what the
model said last has the rest of the line."""
SHORTEST = len("outcome")
"""Columns of each of the three in any case."""
WIDEST = 100
"""Columns of the curve."""


def watched(place: str | None, root: Path) -> int:
    """Show the run of that name or folder; without one, the run below `root` that changed last. Exit code 0. Raises
    UserError."""
    if place is not None:
        folder = newest_run(place, root, holding="status.json") or known_run(
            place, root, holding="status.json", expected="a run's name or folder"
        )
        return watch(folder.absolute())
    rows = Library(root).runs() if root.is_dir() else []
    if not rows:
        raise UserError(
            "There is no run to look at.", where=str(root), expected="a run's folder", do="start one, or name a folder"
        )
    return watch(root / rows[0]["name"])


def watch(folder: Path) -> int:
    """Show the run in `folder`: once where it is over or the output is no terminal, else until it ends or Ctrl-C. Exit
    code 0."""
    run = _Run(folder)
    if not console.is_terminal or not run.goes_on():
        console.print(run.screen())
        return 0
    with suppress(KeyboardInterrupt), live_screen(run.screen(), console, vertical_overflow="crop") as live:
        goes_on = True
        while goes_on:
            time.sleep(EVERY)
            goes_on = run.goes_on()  # before the look: the last screen is of a run that is over
            live.update(run.screen(), refresh=True)
    return 0


class _Run:
    """The part of a run that was read so far."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._table = folder, EpisodeTable(folder)
        self._rows: list[dict[str, Any]] = []
        self._next = 0

    def goes_on(self) -> bool:
        return bool(summary(self.folder.parent, self.folder)["state"] == "running")

    def screen(self) -> RenderableType:
        found = metrics_after(self.folder, self._next)
        self._rows = found["rows"] if found["reset"] else self._rows + found["rows"]
        self._next = found["next"]
        self._table.look(wait=None)
        return Group(self._head(), Text(), self._curve(), Text(), self._episodes())

    def _head(self) -> Text:
        row = summary(self.folder.parent, self.folder)
        step = "no step yet" if row["step"] is None else f"step {row['step']}"
        step += f" of {row['steps']}" if row["steps"] and row["step"] is not None else ""
        told = [step]
        told += [row["phase"]] if row["state"] == "running" and row["phase"] else []
        told += [f"held out {row['held_out']}"] if row["held_out"] else []
        told += [f"changed {age(row['updated'])}"]
        head = Text.assemble((printable(row["name"]), "bold"), "  ", (row["state"], STYLES.get(row["state"], "dim")))
        head.append(printable(f"  {', '.join(map(str, told))}"))
        if row["problem"]:
            head.append(f"\n{printable(row['problem'])}", style="red")
        return head

    def _curve(self) -> RenderableType:
        training, held_out = training_course(self._rows), held_out_course(self._rows)
        if not training.points and not held_out.points:
            if not self.goes_on():
                return Text("Nothing was measured: the run is over, and no step of it was trained.", "dim")
            return Text("Nothing measured yet: a run writes its first numbers when its first step is done.", "dim")
        drawn = text_curve(training, held_out, width=columns_in(console.width, WIDEST))
        legend, _, curve = drawn.partition("\n")
        return Group(between_words(Text(legend), console.width), Text(curve, no_wrap=True))

    def _episodes(self) -> RenderableType:
        rows = [row for row, _ in self._table.rows()][:EPISODES]
        if not rows:
            return Text("No episode was recorded yet.", "dim")
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("step", "task", "said last", "outcome", "reward"):
            table.add_column(name, justify="right" if name in ("step", "reward") else "left", no_wrap=True)
        asked_in, failed_in = (max(SHORTEST, min(most, int(share * console.width))) for most, share in (TASK, OUTCOME))
        lines = []
        for row in rows:
            outcome = row["failure"] or ("" if row["status"] == "completed" else row["status"])
            asked = row["query"] or row["task"] or row["uuid"][:8]
            words = [printable(" ".join(str(text).split())) for text in (asked, row["answer"] or "", outcome)]
            reward = "–" if row["reward"] is None else f"{row['reward']:.3g}"
            lines.append((str(row["step"]), _cut(words[0], asked_in), words[1], _cut(words[2], failed_in), reward))
        heads = {0: "step", 1: "task", 3: "outcome", 4: "reward"}
        others = sum(max(len(head), *(len(line[at]) for line in lines)) + 2 for at, head in heads.items())
        for step, question, answer, failed, reward in lines:
            said = _cut(answer, max(SHORTEST, console.width - others))
            table.add_row(step, Text(question), Text(said), Text(failed, "red"), reward)
        return table


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"

"""`ajet runs` and `ajet episodes`: prints the viewer's tables in a terminal.

Invariant: rows are read by the viewer's code; model output is printed without terminal control characters.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, get_args

from rich.table import Table

from ajet.commands.episode_panel import show_episode
from ajet.record.console import console, counted, format_age, format_number, print_line
from ajet.record.find_run import newest_run, run_folder, suggest_run
from ajet.record.learned import LEARNED_NOTHING
from ajet.record.reward_hacking import GAMED
from ajet.schema.commands import format_command
from ajet.schema.episode import Split
from ajet.schema.errors import UserError
from ajet_viewer.episode_page import read_episode
from ajet_viewer.episode_table import EpisodeTable
from ajet_viewer.library import Library
from ajet_viewer.table_filter import FilterError, TableFilter

STYLES = {"running": "cyan", "finished": "green", "failed": "red", "stopped": "red"}

WHOLE_NAME = 0.4
"""Maximum share of the terminal's width up to which run names are not wrapped."""
NARROW = 60
"""Width of a terminal, in characters, below which columns stand closer."""
BESIDE_NAME = len("interrupted step reward 59 min") + 2
"""Width of the columns next to the name in characters, without the column of validation results (held out)."""


def show_runs(root: Path, *, debug: bool = True) -> int:
    """Print a table of the runs in a folder, last changed first, and return the exit code 0.

    Args:
        root: folder of all runs.
        debug: True to include debug runs.
    """
    rows = [row for row in (Library(root).runs() if root.is_dir() else []) if debug or row["kind"] != "debug"]
    if not rows:
        start_command = format_command("--conf", "FILE.yaml", "--backbone", "local")
        print_line(f"There are no runs in {root}. To start one: {start_command}")
        return 0
    is_narrow = console.width < NARROW
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0) if is_narrow else (0, 1))
    are_names_short = max(len(row["name"]) for row in rows) <= WHOLE_NAME * console.width
    # In a narrow terminal, validation results wrap between words, so the longest word decides the width.
    held_out_words = [word for row in rows for word in (row["held_out_short"] or "").split()]
    held_out_width = max(map(len, ("held out", *held_out_words))) if is_narrow else None
    name_width = max(8, console.width - BESIDE_NAME - (held_out_width or 0)) if is_narrow else None
    # Names are copied into commands, so none is cut.
    table.add_column("run", overflow="fold", no_wrap=are_names_short, max_width=name_width)
    table.add_column("state", min_width=len("interrupted"))
    table.add_column("step", justify="right")
    table.add_column("reward", justify="right")
    table.add_column("held out", justify="right", max_width=held_out_width)
    table.add_column("ago", no_wrap=True)
    for row in rows:
        reward = row["train/reward"] if row["train/reward"] is not None else row["debug/reward"]
        state = f"[{STYLES.get(row['state'], 'dim')}]{row['state']}[/]"
        state += ", [yellow]learned nothing[/]" if row[LEARNED_NOTHING] else ""
        state += ", [yellow]rewards gamed?[/]" if row[GAMED] else ""
        table.add_row(
            _escape_text(row["name"]), state, format_number(row["step"], "d"),
            " ".join(filter(None, (format_number(reward, ".3g"), row["reward_short"]))),
            row["held_out_short"] or format_number(None), format_age(row["updated"]).removesuffix(" ago"),
        )  # fmt: skip
    console.print(table)
    return 0


def show_episodes(run: str, root: Path, *, count: int, best: bool, step: str | None, split: str, uuid: str = "") -> int:
    """Print the episodes of a run with the lowest or highest rewards, then unscored ones, and return the exit code 0.

    Args:
        run: the run's name or folder.
        root: folder of all runs.
        count: maximum number of printed episodes.
        best: True to start with the highest rewards, False with the lowest.
        step: a step or a range such as 3..9, or None for all.
        split: train, validation or debug, or "" for all.
        uuid: id of the only episode to print, or "".

    Raises:
        UserError: the run or the episode does not exist, or an argument is invalid.
    """
    folder = newest_run(run, root, holding="episodes") or run_folder(run, root, holding="episodes")
    if not (folder / "episodes").is_dir():
        raise UserError(
            f"There are no episodes of a run named {run}.",
            where=str(folder / "episodes"),
            expected="a run folder",
            do=suggest_run(run, root),
        )
    if split and split not in get_args(Split):
        raise UserError(f"There is no split {split}.", where="--split", expected=" or ".join(get_args(Split)))
    try:
        table_filter = TableFilter.from_query({"step": step or "", "split": split})
    except FilterError as error:
        raise UserError(
            f"'{step}' is not a step.", where="--step", expected="a step, or a range such as 3..9"
        ) from error
    table = EpisodeTable(folder)
    table.read_new_rows(wait=None)
    matches = [
        (row, line_place) for row, line_place in table.rows() if table_filter.admits(row) and uuid in ("", row["uuid"])
    ]
    if uuid and not matches:
        raise UserError(
            f"There is no episode {uuid}.", where=str(folder / "episodes"), expected="the id of a recorded episode"
        )
    scored_matches = sorted(
        (match for match in matches if match[0]["reward"] is not None), key=lambda match: match[0]["reward"]
    )
    ordered_matches = (scored_matches[::-1] if best else scored_matches) + [
        match for match in matches if match[0]["reward"] is None
    ]
    for _, line_place in ordered_matches[:count]:
        try:
            show_episode(read_episode(line_place)[0])
        except (UserError, OSError, ValueError) as error:
            problem = error.what if isinstance(error, UserError) else f"the episode cannot be read: {error}"
            console.print(f"{line_place.path.name}: {_escape_text(problem)}", soft_wrap=True)
    if matches:
        console.print(f"{min(count, len(ordered_matches))} of {counted(len(matches), 'episode')}")
    else:
        console.print(_describe_episodes([row for row, _ in table.rows()]), soft_wrap=True)
    return 0


def _describe_episodes(rows: list[dict[str, Any]]) -> str:
    """Return a sentence about the episodes that exist, for a request that matches none."""
    if not rows:
        return "No episode is recorded yet."
    splits = Counter(row["split"] for row in rows)
    counts = ", ".join(f"{count} of the split {split}" for split, count in splits.items())
    steps = [row["step"] for row in rows]
    return f"No episode matches this step and split; recorded are {counts}, steps {min(steps)} to {max(steps)}."


def _escape_text(text: str) -> str:
    """Replace control characters of a text, and escape brackets, which rich would read as markup."""
    return "".join(letter if letter.isprintable() else "�" for letter in text).replace("[", "\\[")

"""Resolves the argument of `ajet prove`: a run, one episode file, or an episode of any run.

Invariant: the lookup only reads and locks no run, so a live run can be proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet.config.record_file import list_record_folder, open_record_file
from ajet.record.episodes import NAME
from ajet.record.files import next_line, parse_object
from ajet.record.find_run import newest_run, run_folder, suggest_run
from ajet.record.run_directory import CONFIG
from ajet.schema.errors import UserError

SHORTEST = 6
"""Minimum number of letters of an episode's uuid on the command line."""


@dataclass(frozen=True, slots=True)
class ProofTarget:
    """The episode files of one run that shall be proven."""

    run: Path
    files: tuple[Path, ...]
    episode: str = ""
    """First letters of the uuid of the only episode to prove, or "" for all episodes of the files."""
    is_complete: bool = False
    """True if `files` are all files of the run."""


def find_target(named: str, root: Path, steps: Sequence[int] = ()) -> ProofTarget:
    """Find the episode files of a run, a file or an episode.

    Args:
        named: The run's name or folder, the file, or the first letters of the episode's uuid.
        root: Folder of all runs.
        steps: Steps whose files are returned; empty for all.

    Raises:
        UserError: nothing or several episodes match, or no file remains.
    """
    path = Path(named)
    if path.suffix == ".jsonl" and path.exists():
        return _select_steps(ProofTarget(_find_run_folder(path.absolute()), (path.absolute(),)), steps)
    folder = newest_run(named, root, holding="episodes") or run_folder(named, root, holding=CONFIG)
    if (folder / CONFIG).exists():
        names = [name for name in list_record_folder(folder / "episodes") if NAME.fullmatch(name)]
        files = tuple(sorted((folder / "episodes" / name for name in names), key=_make_sort_key))
        return _select_steps(ProofTarget(folder.absolute(), files, is_complete=not steps), steps)
    episodes = list(_find_episodes(named, root)) if len(named) >= SHORTEST and named.isalnum() else []
    if len({uuid for uuid, _ in episodes}) > 1:
        raise UserError(
            f"The ids of {len(episodes)} episodes begin with {named}.",
            where=str(root),
            expected="more letters of the id",
            do=", ".join(sorted({uuid for uuid, _ in episodes})[:4]),
        )
    if episodes:
        uuid, file = episodes[0]
        return _select_steps(ProofTarget(_find_run_folder(file), (file,), uuid), steps)
    raise UserError(
        f"There is no run and no episode named {named}.",
        where=str(root),
        expected=f"a run's name or folder, an episodes/step-N.jsonl, or {SHORTEST} letters of an episode's id",
        do=suggest_run(named, root),
    )


def parse_episode_name(file: Path) -> tuple[int, str]:
    """Return (step, split) from the name of an episode file. Raises UserError for any other file."""
    match = NAME.fullmatch(file.name)
    if match is None:
        raise UserError(f"{file.name} is not an episode file.", where=str(file), expected="step-N.jsonl")
    return int(match[1]), match[2] or "train"


def _make_sort_key(file: Path) -> tuple[int, bool]:
    """Return the key that sorts episode files by step, the training file before the validation file of a step."""
    step, split = parse_episode_name(file)
    return step, split != "train"


def _select_steps(target: ProofTarget, steps: Sequence[int]) -> ProofTarget:
    """Limit a target to the files of some steps; no steps means all. Raises UserError if no file remains."""
    files = tuple(file for file in target.files if not steps or parse_episode_name(file)[0] in steps)
    if not files:
        step_text = f" of step {', '.join(map(str, steps))}" if steps else ""
        raise UserError(f"No episodes{step_text} are recorded.", where=str(target.run / "episodes"))
    return ProofTarget(target.run, files, target.episode, target.is_complete)


def _find_run_folder(file: Path) -> Path:
    """Return the folder above an episode file that has the run's settings. Raises UserError if there is none."""
    for folder in file.parents:
        if (folder / CONFIG).exists():
            return folder
    raise UserError(
        "These episodes are outside a run's folder, so model and settings are unknown.",
        where=str(file),
        expected=f"a {CONFIG} in a folder above",
    )


def _find_episodes(uuid_prefix: str, root: Path) -> Iterator[tuple[str, Path]]:
    # Only lines that contain the letters after a quote are parsed.
    """Yield (uuid, file) of each episode in any run below `root` whose uuid begins with some letters."""
    needle = f'"{uuid_prefix}'.encode()
    for file in sorted(root.rglob("episodes/step-*.jsonl")):
        try:
            with open_record_file(file) as lines:
                while (line := next_line(lines)).endswith(b"\n"):
                    if needle in line and (uuid := str(parse_object(line)["uuid"])).startswith(uuid_prefix):
                        yield uuid, file
        except (OSError, ValueError, KeyError):
            continue  # the rest of a damaged file, which may be another run's

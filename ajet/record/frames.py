"""A recorded run as pandas data frames, for notebooks: `ajet.record.open("my_run").episodes()`.

Invariant: read-only. Frames come from `EpisodeFiles` and the metrics rows, with missing values for unrecorded fields.
No network access; no code of the record runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.record_file import list_record_folder
from ajet.record.episodes import NAME, read_recorded
from ajet.record.files import read_rows
from ajet.record.find_run import newest_run, run_folder, suggest_run
from ajet.schema.episode import Episode, Outcome
from ajet.schema.errors import MissingExtraError, UserError

if TYPE_CHECKING:
    from pandas import DataFrame

RECORD = Path("launcher_record")


class RecordedRun:
    """The folder of one run. Each call reads the files again, so the run may still be live."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"RecordedRun({str(self.path)!r})"

    def metrics(self) -> DataFrame:
        """Return a row per training step and per validation (columns `validation/…`), as in `metrics.jsonl`.

        Raises:
            UserError: The record is damaged.
        """
        return _make_frame(list(read_rows(self.path / "metrics.jsonl")))

    def episodes(self, split: str | None = None) -> DataFrame:
        """Return a row per episode: task, status, reward, tokens, and the training step.

        An episode that several steps trained has a row per step. Columns `workflow.…` are numbers logged by the
        workflow, `judge.…` and `scorer.…` come from the verdict.

        Args:
            split: "train", "validation" or "debug". None for all.

        Raises:
            UserError: the record is damaged.
        """
        recordings = (recorded for path in self._episode_files(split) for recorded in read_recorded(path))
        return _make_frame([row for episode, outcome in recordings for row in _episode_rows(episode, outcome)])

    def calls(self, split: str | None = None) -> DataFrame:
        """Return a row per model call. `episode` is the episode's uuid, times are seconds since the epoch.

        Args:
            split: "train", "validation" or "debug". None for all.

        Raises:
            UserError: The record is damaged.
        """
        return self._collect_rows(split, _call_rows)

    def tool_uses(self, split: str | None = None) -> DataFrame:
        """Return a row per tool use. `episode` is the episode's uuid.

        Args:
            split: "train", "validation" or "debug". None for all.

        Raises:
            UserError: The record is damaged.
        """
        return self._collect_rows(split, _tool_use_rows)

    def tokens(self, episode: str) -> DataFrame:
        """Return a row per token of the timelines of one episode.

        Columns: `id`; `trained`: sampled and trained in this timeline; `logprob` under the sampling distribution;
        `logprob_unit` at temperature 1; the policy `version`.

        Args:
            episode: The episode's uuid, or a prefix of the uuid.

        Raises:
            UserError: no such episode, or the record is damaged.
        """
        for path in self._episode_files(None):
            if any(row["uuid"].startswith(episode) for row in read_rows(path)):
                match = next(recorded for recorded, _ in read_recorded(path) if recorded.uuid.startswith(episode))
                return _make_frame(list(_token_rows(match)))
        raise UserError(
            f"This run has no episode {episode}.",
            where=str(self.path),
            do="`.episodes()` lists the ids of its episodes",
        )

    def _collect_rows(
        self, split: str | None, rows: Callable[[Episode, Outcome], Iterator[dict[str, Any]]]
    ) -> DataFrame:
        """Return the rows of all episodes as a data frame. An episode that several steps trained counts once.

        Args:
            split: Only episodes of this split. None for all.
            rows: Returns the rows of one episode.
        """
        seen_uuids, all_rows = set[str](), list[dict[str, Any]]()
        for path in self._episode_files(split):
            for episode, outcome in read_recorded(path):
                all_rows += rows(episode, outcome) if episode.uuid not in seen_uuids else ()
                seen_uuids.add(episode.uuid)
        return _make_frame(all_rows)

    def _episode_files(self, split: str | None) -> list[Path]:
        """Return the episode files of a split (None: of all), sorted by step and split."""
        folder = self.path / "episodes"
        matches = [match for name in list_record_folder(folder) if (match := NAME.fullmatch(name))]
        files = [(int(match[1]), match[2] or "train", folder / match[0]) for match in matches]
        return [path for _, file_split, path in sorted(files) if split in (None, file_split)]


def open_run(run: str | Path, root: str | Path = RECORD) -> RecordedRun:
    """Open a recorded run by name or folder. For a name, the newest of the run and its debug runs is opened.

    Args:
        run: Name of the run, or a folder.
        root: Folder of all runs.

    Raises:
        UserError: There is no such run.
    """
    name, root_folder = str(run), Path(root)
    folder = newest_run(name, root_folder, holding="episodes") or run_folder(name, root_folder, holding="episodes")
    if not (folder / "episodes").exists():
        raise UserError(
            f"There is no run named {name}.",
            where=str(folder),
            expected="the folder of a run that has recorded episodes",
            do=suggest_run(name, root_folder),
        )
    return RecordedRun(folder)


def _make_frame(rows: list[dict[str, Any]]) -> DataFrame:
    """Return the rows as a pandas data frame. Raises MissingExtraError without pandas."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise MissingExtraError("pandas", "local", needed_for="A data frame") from error
    return DataFrame(rows)


def _episode_rows(episode: Episode, outcome: Outcome) -> Iterator[dict[str, Any]]:
    """Yield the one row of an episode in the table of episodes, with its use in training."""
    verdict, failure, policy = episode.verdict, episode.failure, episode.policy
    yield {
        "uuid": episode.uuid,
        "task": episode.task.task_id,
        "split": episode.split,
        "step": episode.step,
        "order": episode.order,
        "repeat": episode.repeat,
        "status": episode.status,
        "failed_at": failure.boundary if failure else None,
        "failure": failure.message if failure else None,
        "reward": episode.reward,
        "success": verdict.success if verdict else None,
        "reason": verdict.reason if verdict else None,
        "calls": len(episode.calls),
        "tool_uses": len(episode.tool_uses),
        "sampled_tokens": episode.sampled_tokens,
        "untrained_tokens": episode.untrained_with(outcome).total(),
        "trained_in": outcome.step,
        "advantage": outcome.advantage,
        "discarded": outcome.discarded,
        "policy_low": policy.low if policy else None,
        "policy_high": policy.high if policy else None,
        "forks": sum(call.fork is not None for call in episode.calls),
        "started": episode.started,
        "seconds": episode.ended - episode.started,
        **_prefix_names("workflow", episode.metrics),
        **_prefix_names("judge", verdict.metrics if verdict else {}),
        **_prefix_names("scorer", verdict.parts if verdict else {}),
    }


def _prefix_names(kind: str, numbers: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the numbers as columns named KIND.NAME."""
    return {f"{kind}.{name}": number for name, number in numbers.items()}


def _call_rows(episode: Episode, _: Outcome) -> Iterator[dict[str, Any]]:
    """Yield a row for each model call of an episode."""
    for call in episode.calls:
        yield {
            "episode": episode.uuid,
            "call": call.index,
            "agent": call.agent,
            "target": call.target,
            "trained": call.trained,
            "parent": call.parent,
            "fork": call.fork,
            "finish": call.finish,
            "error": call.error,
            "prompt_tokens": call.prefix + len(call.suffix_ids),
            "new_prompt_tokens": len(call.suffix_ids),
            "reply_tokens": len(call.response_ids),
            "logprob": float(call.logprobs.mean()) if len(call.logprobs) else None,
            "temperature": call.temperature,
            "said": episode.messages[call.reply].get("content") if call.reply is not None else None,
            "started": call.started,
            "seconds": call.ended - call.started,
        }


def _tool_use_rows(episode: Episode, _: Outcome) -> Iterator[dict[str, Any]]:
    """Yield a row for each tool use of an episode."""
    for use in episode.tool_uses:
        yield {
            "episode": episode.uuid,
            "tool": use.name,
            "arguments": dict(use.arguments),
            "result": use.result,
            "error": use.error or None,
            "server": use.server or None,
            "started": use.started,
            "seconds": use.ended - use.started,
        }


def _token_rows(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield a row for each token of an episode's timelines. Tokens that are not trained have no log-probabilities."""
    for number, timeline in enumerate(episode.timelines):
        columns = (timeline.ids, timeline.mask, timeline.logprobs, timeline.logprobs_unit, timeline.versions)
        for index, (token, trained, logprob, logprob_unit, version) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            yield {
                "timeline": number,
                "agent": timeline.agent,
                "place": index,
                "id": token,
                "trained": trained,
                "logprob": logprob if trained else None,
                "logprob_unit": logprob_unit if trained else None,
                "version": version if trained else None,
            }

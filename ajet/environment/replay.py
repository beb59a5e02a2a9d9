"""Replay recorded tool uses in place of tools.

Invariant: a use is answered with the recorded result for the same task, tool and arguments after the same earlier uses.
Overlapping uses may come in any order. An incomplete record is a miss, never a guess. No process is started and no
network is used. Server tools are the run's pinned tools. Questions to a browse agent are part of its condensed result.

`RunReplay` holds the recorded attempts by task. A `ReplayWalk` follows the attempts equal to the current attempt so
far; `note_use` drops all others. The lookup key is (earlier uses, tool, canonical arguments), except for the order of
overlapping uses, because an immediate replay cannot repeat the timing.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ajet.environment.pinned import FILE, read_pinned
from ajet.record.episodes import EpisodeFiles, read_tool_uses
from ajet.record.tool_uses import bound_arguments, canonical_json
from ajet.schema.commands import format_list_command
from ajet.schema.errors import ConfigError, EnvironmentFailure
from ajet.schema.task import Task
from ajet.schema.tool_use import BROWSE_AGENT, ToolUse, compute_digest

Miss = Literal["error", "live"]


class ReplayMissError(EnvironmentFailure):
    """The recorded run has no matching use."""

    retryable = False


class RunReplay:
    """The recorded tool uses of a run, to be replayed. Immutable, so threads may share it."""

    def __init__(self, folder: Path, on_miss: Miss) -> None:
        """Read the tool uses of all episodes in a run's folder.

        Args:
            on_miss: What happens to a call without a recorded use: "error", or "live" to call the tool.

        Raises:
            UserError: a recorded file is damaged.
            ConfigError: the run recorded no tool uses.
        """
        self.on_miss, self.tools = on_miss, read_pinned(folder)
        self._attempts: dict[str, list[tuple[int, tuple[_RecordedUse, ...]]]] = defaultdict(list)
        for path in sorted(EpisodeFiles(folder / "episodes").folder.glob("step-*.jsonl")):
            for task, repeat, uses in read_tool_uses(path):
                if uses:
                    recorded_uses = tuple(_RecordedUse.of(use) for use in uses if use.name != BROWSE_AGENT)
                    self._attempts[_task_key(task)].append((repeat, recorded_uses))
        if not self._attempts:
            raise ConfigError(
                "The run to replay recorded no tool uses.",
                where="ajet.environment.replay",
                expected=f"episodes with tool uses in {folder / 'episodes'}",
                do="record a run whose workflow reports its tool uses (`tuner.tool`), or remove the key",
            )

    def walk(self, task: Task, repeat: int) -> ReplayWalk:
        """Return the source of recorded results for one attempt at a task.

        Args:
            repeat: Number of the attempt. Results of the recorded attempt with the same number come first.
        """
        ordered = sorted(self._attempts.get(_task_key(task), ()), key=lambda attempt: attempt[0] != repeat)
        return ReplayWalk([_FollowedAttempt(uses) for _, uses in ordered], self, task.task_id)


@dataclass(frozen=True, slots=True)
class _RecordedUse:
    use: ToolUse
    arguments: str

    @classmethod
    def of(cls, use: ToolUse) -> _RecordedUse:
        """Return a recorded use with its arguments as canonical JSON."""
        return cls(use, canonical_json(use.arguments))


@dataclass(slots=True)
class _FollowedAttempt:
    """A recorded attempt and its uses replayed so far."""

    uses: tuple[_RecordedUse, ...]
    done: set[int] = field(default_factory=set)

    def next(self, name: str, arguments: str) -> list[int]:
        """Return the indices of uses with this tool and arguments that may come next.

        A use may come once all uses that had ended before its start are done; overlapping uses may come in any order.
        """
        return [
            index
            for index, recorded in enumerate(self.uses)
            if index not in self.done
            and recorded.use.name == name
            and recorded.arguments == arguments
            and all(other_index in self.done or other.use.ended > recorded.use.started
                    for other_index, other in enumerate(self.uses) if other_index != index)
        ]  # fmt: skip


class ReplayWalk:
    """Progress of an attempt along recorded attempts. Thread-safe."""

    def __init__(self, followed: list[_FollowedAttempt], replay: RunReplay, task: str) -> None:
        self._matching_attempts = followed
        self._replay = replay
        self._task = task
        self._lock = threading.Lock()
        self._call_count = 0

    def tools(self) -> list[dict[str, Any]] | None:
        """Return the recorded tools as a request's `tools`, or None to query the servers. Raises ReplayMissError."""
        if self._replay.tools is None and self._replay.on_miss == "error":
            raise ReplayMissError(
                f"the replayed run did not store the tools of its servers ({FILE}); to ask the servers, set "
                "environment.replay_miss: live"
            )
        return self._replay.tools

    def __call__(self, name: str, arguments: Mapping[str, object]) -> ToolUse | None:
        """Return the recorded use of this call, or None if the tool must be called.

        Raises:
            ReplayMissError: there is no complete recorded use, and tools must not be called (`on_miss` "error").
        """
        canonical_arguments = canonical_json(bound_arguments(arguments))
        with self._lock:
            candidates = [
                attempt.uses[index].use
                for attempt in self._matching_attempts
                for index in attempt.next(name, canonical_arguments)
            ]
            reason = (
                f"{len(self._matching_attempts)} recorded attempts at this task began with the same calls"
                if self._matching_attempts
                else "no recorded attempt began like this one"
            )
        complete_use = next((use for use in candidates if not use.cut and not use.images), None)
        if complete_use is None and self._replay.on_miss == "error":
            incomplete = (
                f", the record has only {'the text' if candidates[0].images else 'the beginning'} of its result"
                if candidates
                else ""
            )
            raise ReplayMissError(
                f"the replayed run has no recorded call {name}({canonical_arguments[:200]}) after "
                f"{self._call_count} calls at task {self._task} ({reason}{incomplete}); to call the tool, "
                "set environment.replay_miss: live"
            )
        return complete_use

    def note_use(self, use: ToolUse) -> None:
        """Note that the attempt has used a tool, and drop recorded attempts that did not use it in the same way.

        A recorded attempt stays if a use that may come next has the same tool, arguments, result and error.
        """
        if use.name == BROWSE_AGENT:  # part of another tool's recorded result
            return
        arguments = canonical_json(use.arguments)
        with self._lock:
            self._call_count += 1
            still_followed = []
            for attempt in self._matching_attempts:
                next_uses = ((index, attempt.uses[index].use) for index in attempt.next(use.name, arguments))
                equal_uses = [
                    index
                    for index, recorded_use in next_uses
                    if (recorded_use.digest, recorded_use.error) == (use.digest, use.error)
                ]
                if equal_uses:
                    attempt.done.add(equal_uses[0])
                    still_followed.append(attempt)
            self._matching_attempts = still_followed


def _task_key(task: Task) -> str:
    """Return a digest of a task's id, question and messages, by which recorded attempts at the task are found."""
    fields = task.model_dump(mode="json")
    return compute_digest(
        canonical_json({name: fields.get(name) for name in ("task_id", "main_query", "init_messages")})
    )


def replays_alone(environment: Any) -> bool:
    """Return True if a run only uses recorded tool results, so that no tool is needed.

    Args:
        environment: The section `environment` of the config.
    """
    return bool(environment.replay) and environment.replay_miss == "error"


def find_replayed_run(named: str, *, base: Path, root: Path) -> Path:
    """Return the folder of the recorded run that `environment.replay` names.

    Args:
        named: Name of a run in `root`, or a path.
        base: Folder of relative paths.
        root: Folder of all runs.

    Raises:
        ConfigError: there is no folder with episodes.
    """
    candidates = [root / named, base / Path(named).expanduser()]
    for folder in candidates:
        if (folder / "episodes").is_dir():
            return folder
    raise ConfigError(
        f"There is no recorded run {named} to replay.",
        where="ajet.environment.replay",
        expected=f"a folder with episodes/ at {candidates[0]} or {candidates[1]}",
        do=f"`{format_list_command(root)}` lists the runs: pass the name or folder of one",
    )

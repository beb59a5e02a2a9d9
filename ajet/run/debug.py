"""The debug verb: a few tasks, played like training, shown episode by episode; nothing is trained.

Invariant: a failed episode is shown with the boundary it failed at and the line to look at; the run itself succeeds
only if some episode did. What a model wrote reaches the terminal without the control characters that it would obey.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.panel import Panel
from rich.text import Text

from ajet.record.console import console, counted, printable
from ajet.run.accounting import episode_metrics
from ajet.run.assembly import Parts
from ajet.run.format_log import log_formats
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.record import RunDirectory
    from ajet.schema.episode import Episode, Failure

SHOWN = 2000
"""Characters of one message that are shown; the record has all of it."""
SHOWN_FRAME_LINES = 6
"""Lines of a failure's traceback that are shown, the last ones."""

HINTS = {
    "agent": "the workflow raised: the last lines above name the place; a breakpoint there works in this backbone",
    "engine": "the engine failed: see the log in the run directory",
    "judge": "the judge raised or gave no number: call it alone with the answer shown above",
    "environment": "the environment did not answer: is its service running?",
    "tool": "a tool failed",
    "ajet": "this is a bug in ajet: please report it with the log",
}
"""What to do about a failure at each boundary."""
KIND_HINTS = {
    "no_model_call": "give the client the tuner, or the address and key that it hands out",
    "returned_nothing": "let `execute` return a WorkflowOutput",
    "wrong_type": "let `execute` return a WorkflowOutput",
    "timeout": "raise `rollout.episode_timeout`, or find what blocks",
    "CommandFailed": "run the command by hand; `command_agent.keep: failed` keeps the episode's folder",
    "CommandTimedOut": "raise `command_agent.timeout`, or find what blocks",
    "CommandOverLimit": "raise that limit in `command_agent.limits`, or find what uses so much",
}
"""The same for failures of the agent that are no exception of the user's code."""


def debug_run(parts: Parts, run: RunDirectory) -> list[Episode]:
    """Play the first `debug_first_n_tasks` training tasks and show what happened. Raises UserError when every episode
    failed."""
    debug = parts.experiment.ajet.debug
    tasks = list(enumerate(parts.tasks("train")))[: debug.debug_first_n_tasks]
    episodes: list[Episode] = []
    run.status.set(phase="rollout", step=0)
    for group in parts.rollout.play(tasks, step=0, split="debug"):
        for episode in group.episodes:
            episodes.append(episode)
            show_episode(episode)
        run.episodes.write(0, "debug", group.episodes)
    log_formats(episodes, parts.experiment.ajet.context_tracker)
    metrics = episode_metrics(episodes, "debug")
    run.metrics.log(0, metrics)
    _show_summary(episodes, metrics, run)
    if episodes and all(episode.failure for episode in episodes):
        raise UserError(
            "No episode came to its end.", expected="at least one that does", do="mend what the hint above names"
        )
    return episodes


def show_episode(episode: Episode) -> None:
    """One panel: turns, tool calls, reward and why, forks, tokens that training would use."""
    lines = Text()
    for index in _transcript(episode):
        _append_message(lines, episode.messages[index])
    if episode.failure:
        failure = episode.failure
        lines.append(f"✗ {failure.boundary}: {failure.kind}: {printable(failure.message)}\n", style="bold red")
        lines.append("\n".join(_last_frames(failure)), style="red")
    lines.rstrip()
    title = f"{episode.task.task_id} · attempt {episode.repeat} · {_outcome(episode)}"
    console.print(Panel(lines, title=Text(printable(title)), subtitle=Text(_footer(episode)), title_align="left"))


def _last_frames(failure: Failure) -> list[str]:
    """The traceback's last lines, without the message that it ends with: it is shown above them."""
    frames, message = printable(failure.traceback.strip()), printable(failure.message.strip())
    if message and frames.endswith(message):
        frames = frames[: -len(message)].rpartition("\n")[0]
    lines = frames.splitlines()[-SHOWN_FRAME_LINES:]
    return lines if not lines or lines[0].strip(" ^~") else lines[1:]  # carets below a line that is cut off


def _outcome(episode: Episode) -> str:
    if episode.status != "completed":
        return episode.status
    if episode.verdict is None or episode.verdict.reward is None:
        reason = episode.verdict.reason.removeprefix("no score: ") if episode.verdict else ""
        return "no score" + (f" ({reason})" if reason else "")
    why = f" ({episode.verdict.reason})" if episode.verdict.reason else ""
    return f"reward {episode.verdict.reward:g}{why}"


def _footer(episode: Episode) -> str:
    trained = sum(timeline.sampled for timeline in episode.timelines)
    forks = Counter(call.fork for call in episode.calls if call.fork)
    parts = [
        counted(len(episode.calls), "call"),
        f"{counted(episode.sampled_tokens, 'token')} sampled",
        f"{trained} to train",
    ]
    parts += [f"{count} forked ({reason})" for reason, count in forks.items()]
    parts += [f"check: {check}" for check in episode.checks]
    return " · ".join(parts + [f"{episode.ended - episode.started:.1f} s"])


def _transcript(episode: Episode) -> list[int]:
    """Message indices in reading order: each call's messages that were not shown yet, then its reply."""
    shown: list[int] = []
    for call in episode.calls:
        shown += [index for index in (*call.messages, call.reply) if index is not None and index not in shown]
    return shown


def _append_message(lines: Text, message: dict[str, Any]) -> None:
    role = printable(str(message.get("role", "?")))
    style = {"assistant": "green", "tool": "magenta", "system": "dim"}.get(role, "cyan")
    lines.append(f"{role}: ", style=f"bold {style}")
    if message.get("reasoning_content"):
        lines.append(f"(thinks) {_clipped(message['reasoning_content'])}\n", style="dim")
    if message.get("content"):
        lines.append(_clipped(_as_text(message["content"])))
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        lines.append(
            f"\n  → {printable(str(function.get('name')))}({_clipped(function.get('arguments'))})", style="yellow"
        )
    lines.append("\n")


def _as_text(content: Any) -> str:
    """A message's content; images by name only."""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text") or f"[{part.get('type', 'part')}]" for part in content)


def _hint(failure: Failure) -> str:
    return (KIND_HINTS.get(failure.kind) if failure.boundary == "agent" else None) or HINTS[failure.boundary]


def _clipped(content: Any) -> str:
    text = printable(content if isinstance(content, str) else str(content))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text) - SHOWN} more characters)"


def _show_summary(episodes: list[Episode], metrics: dict[str, float], run: RunDirectory) -> None:
    scored = int(metrics["debug/scored"])
    reward = f", mean reward {metrics['debug/reward']:.2f}" if scored else ""
    console.print(
        f"{counted(len(episodes), 'episode')}: {scored} scored{reward}, {int(metrics['debug/failed'])} failed, "
        f"{counted(int(metrics['debug/forks']), 'call')} forked"
    )
    console.print(f"Record: {run.path}", markup=False, soft_wrap=True)
    for boundary, hint in sorted({(e.failure.boundary, _hint(e.failure)) for e in episodes if e.failure}):
        console.print(f"hint ({boundary}): {hint}", markup=False)
    if scored and not any(timeline.sampled for episode in episodes for timeline in episode.timelines):
        console.print("hint: no token could be trained: does the workflow call the model through its tuner?")

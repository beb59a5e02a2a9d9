"""The debug verb: a few tasks, played like training, shown episode by episode; nothing is trained.

Invariant: a failed episode is shown with the boundary it failed at and the line to look at; the run itself succeeds
only if some episode did.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.panel import Panel
from rich.text import Text

from ajet.record.console import console
from ajet.run.accounting import episode_metrics
from ajet.run.assembly import Parts
from ajet.run.format_log import log_formats

if TYPE_CHECKING:
    from ajet.record import RunDirectory
    from ajet.schema.episode import Episode

SHOWN = 2000
"""Characters of one message that are shown; the record has all of it."""

HINTS = {
    "agent": "the workflow raised: the last lines above name the place; a breakpoint there works in this backbone",
    "engine": "the engine failed: see the log in the run directory",
    "judge": "the judge raised or gave no number: call it alone with the answer shown above",
    "environment": "the environment did not answer: is its service running?",
    "tool": "a tool failed",
    "ajet": "this is a bug in ajet: please report it with the log",
}


def debug_run(parts: Parts, run: RunDirectory) -> list[Episode]:
    """Play the first `debug_first_n_tasks` training tasks and show what happened."""
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
    return episodes


def show_episode(episode: Episode) -> None:
    """One panel: turns, tool calls, reward and why, forks, tokens that training would use."""
    lines = Text()
    for index in _transcript(episode):
        _append_message(lines, episode.messages[index])
    if episode.failure:
        failure = episode.failure
        lines.append(f"\n✗ {failure.boundary}: {failure.kind}: {failure.message}\n", style="bold red")
        lines.append("\n".join(failure.traceback.strip().splitlines()[-6:]), style="red")
    title = f"{episode.task.task_id} · attempt {episode.repeat} · {_outcome(episode)}"
    console.print(Panel(lines, title=Text(title), subtitle=Text(_footer(episode)), title_align="left"))


def _outcome(episode: Episode) -> str:
    if episode.status != "completed":
        return episode.status
    if episode.verdict is None or episode.verdict.reward is None:
        return "no score" + (f" ({episode.verdict.reason})" if episode.verdict and episode.verdict.reason else "")
    why = f" ({episode.verdict.reason})" if episode.verdict.reason else ""
    return f"reward {episode.verdict.reward:g}{why}"


def _footer(episode: Episode) -> str:
    trained = sum(timeline.sampled for timeline in episode.timelines)
    forks = Counter(call.fork for call in episode.calls if call.fork)
    parts = [f"{len(episode.calls)} calls", f"{episode.sampled_tokens} tokens sampled", f"{trained} to train"]
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
    role = str(message.get("role", "?"))
    style = {"assistant": "green", "tool": "magenta", "system": "dim"}.get(role, "cyan")
    lines.append(f"{role}: ", style=f"bold {style}")
    if message.get("reasoning_content"):
        lines.append(f"(thinks) {_clipped(message['reasoning_content'])}\n", style="dim")
    if message.get("content"):
        lines.append(_clipped(message["content"]))
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        lines.append(f"\n  → {function.get('name')}({_clipped(function.get('arguments'))})", style="yellow")
    lines.append("\n")


def _clipped(content: Any) -> str:
    text = content if isinstance(content, str) else str(content)
    text = "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text) - SHOWN} more characters)"


def _show_summary(episodes: list[Episode], metrics: dict[str, float], run: RunDirectory) -> None:
    scored = int(metrics["debug/scored"])
    reward = f", mean reward {metrics['debug/reward']:.2f}" if scored else ""
    console.print(
        f"{len(episodes)} episodes: {scored} scored{reward}, {int(metrics['debug/failed'])} failed, "
        f"{int(metrics['debug/forks'])} calls forked. Record: {run.path}"
    )
    for boundary in sorted({episode.failure.boundary for episode in episodes if episode.failure}):
        console.print(f"  hint ({boundary}): {HINTS[boundary]}")
    if scored and not any(timeline.sampled for episode in episodes for timeline in episode.timelines):
        console.print("  hint: no token could be trained: does the workflow call the model through its tuner?")

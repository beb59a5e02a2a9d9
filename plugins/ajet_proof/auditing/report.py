"""Prints the result of an audit on one screen, or encodes it as JSON.

Invariant: texts of models and tools are printed without terminal control characters.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ajet.record.chain import KEY
from ajet.record.console import counted, format_number, printable
from ajet.record.plain_json import plain
from ajet_proof.auditing.audit import RunAudit, Trail
from ajet_proof.auditing.chain_state import parse_episode_step

MOST = 24
"""Maximum number of rows of a printed table."""
WIDE = 100
"""Maximum number of characters of a printed text."""


def encode_audit(found: RunAudit | Trail) -> str:
    """Return the result of an audit as JSON text."""
    content: dict[str, Any]
    if isinstance(found, Trail):
        content = {"run": str(found.run), "step": found.step, "episodes": found.episodes, "steps": found.steps}
    else:
        changes = [{"file": change.file, "line": change.line, "what": change.what} for change in found.changes]
        content = {"run": str(found.run), "chain": None, "changes": changes}
        if (state := found.state) is not None:
            content["chain"] = {
                "links": state.links, "head": state.head, "key": state.key, "held": state.is_key_verified,
                "without_key": state.unkeyed, "steps": len(state.steps),
                "episodes": _count_episodes(found), "rows": len(state.rows), "adopted": dict(state.adopted),
                "removed": state.removed, "starts": len(state.starts),
            }  # fmt: skip
        content["checkpoints"] = found.checkpoints
        content["altered"] = found.altered
    return json.dumps(plain({**content, "ok": found.ok}), indent=1, ensure_ascii=False)


def print_audit(found: RunAudit | Trail, console: Console) -> None:
    """Print the result of an audit on one screen."""
    lines = _format_trail(found) if isinstance(found, Trail) else _format_run(found)
    for line in lines:
        console.print(line if isinstance(line, Table) else Text(printable(line)), soft_wrap=not isinstance(line, Table))


def _count_episodes(audit: RunAudit) -> int:
    """Return the number of episodes that the chain of an audited run lists, or 0 without a chain."""
    return (
        sum(len(line_block.lines) for line_blocks in audit.state.files.values() for line_block in line_blocks)
        if audit.state
        else 0
    )


def _format_run(audit: RunAudit) -> Iterator[str]:
    """Yield the screen lines of a run's audit: size of the chain, left-out episodes, changes, conclusion."""
    state = audit.state
    if state is None and audit.ok:
        yield f"{audit.run.name} has no chain, because it trained no step:"
        yield "changes of its files cannot be detected. `ajet prove` derives its tokens again."
    if state is not None:
        yield (
            f"{audit.run.name}: {counted(state.links, 'link')}, {counted(len(state.steps), 'training step')}, "
            f"{counted(_count_episodes(audit), 'episode')}, {counted(len(state.rows), 'row')} of metrics, "
            f"{counted(len(state.required), 'checkpoint')}"
        )
        yield f"head {state.head}"
        yield from _describe_chain(audit)
    for altered_episode in audit.altered[:MOST]:
        yield f"left out {altered_episode}"
    if len(audit.altered) > MOST:
        yield f"and {len(audit.altered) - MOST} more (--json lists all)"
    for change in audit.changes[:MOST]:
        yield f"changed  {change}"
    if len(audit.changes) > MOST:
        yield f"and {len(audit.changes) - MOST} more (--json lists all)"
    if not audit.ok:
        yield f"{counted(len(audit.changes), 'change')} found."
    elif state is not None:
        yield "The record is as it was committed."


def _describe_chain(audit: RunAudit) -> Iterator[str]:
    """Yield lines on the key of the chain, lines of killed processes, and removed files."""
    state = audit.state
    assert state is not None
    if not state.key:
        yield f"Made without a key ({KEY}): anyone with write access to the folder can write a new chain."
    elif not state.is_key_verified:
        yield f"Made with the key {state.key}; {KEY} is not set to it, so the links' digests were not verified."
    elif state.unkeyed:
        yield f"The first {counted(state.unkeyed, 'link')} were made without a key."
    for file, count in sorted(state.adopted.items()):
        if count:
            yield f"{file}: {counted(count, 'line')} of a killed process were linked by the next process."
    if state.removed:
        yield f"Removed by `ajet gc` (digests are in the chain): {counted(len(state.removed), 'file')}."


def _format_trail(trail: Trail) -> Iterator[str | Table]:
    """Yield the lines and the table that show the traced episodes and steps. A single episode is shown in detail."""
    is_single = len({episode["uuid"] for episode in trail.episodes}) == 1 and trail.step is None
    if is_single:
        is_shown = False
        for episode in trail.episodes:
            yield from _format_episode(episode, is_repeated=is_shown)
            is_shown = is_shown or not (episode["as_committed"] is False or episode.get("gone"))
    for step in trail.steps:
        yield from _format_step(step)
    if not trail.steps:
        yield "used     by no training step"
    if not is_single:
        yield _build_episode_table(trail)
        if len(trail.episodes) > MOST:
            yield f"{MOST} of {len(trail.episodes)} episodes (--json lists all)"
        yield from _format_summary(trail)


def _format_episode(episode: dict[str, Any], *, is_repeated: bool) -> Iterator[str]:
    """Format an episode as lines.

    Args:
        episode: facts of the episode's line.
        is_repeated: True if the episode was printed already, because another step trained it too.
    """
    yield f"{'again    ' if is_repeated else 'episode  '}{episode['uuid']} · {_format_commitment(episode)}"
    if episode["as_committed"] is False or episode.get("gone"):
        return
    if not is_repeated:
        yield from _format_attempt(episode)
    if episode["trained_in"] is not None:
        yield (
            f"used     in step {episode['trained_in']}: advantage {format_number(episode['advantage'], '.3g')}, "
            f"{episode['trained_tokens']} of {episode['sampled_tokens']} tokens trained{_format_untrained(episode)}"
        )
    elif episode["discarded"]:
        yield f"dropped  with its group: {episode['discarded']}{_format_untrained(episode)}"


def _format_attempt(episode: dict[str, Any]) -> Iterator[str]:
    """Yield the lines on an attempt: task, time, model calls, tool calls, status and verdict."""
    question = _shorten_text(episode["question"])
    yield f"task     {episode['task']}, attempt {episode['repeat']}, {episode['split']}: {question}"
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(episode["started"]))
    seconds = episode["ended"] - episode["started"]
    yield f"played   for step {episode['played_for']}, {clock}, {seconds:.1f} s{_format_player(episode)}"
    for number, call in enumerate(episode["calls"][:MOST]):
        versions = ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in call["versions"])
        yield (
            f"call {number:<3} {call['agent']}: {call['prompt']} + {call['sampled']} tokens, policy version "
            f"{versions or 'none'}, {call['error'] or call['finish']}: {_shorten_text(call['said'])}"
        )
    for use in episode["tools"][:MOST]:
        seconds_taken = use["ended"] - use["started"]
        yield (
            f"tool     {use['name']}({_shorten_text(json.dumps(use['arguments'], ensure_ascii=False), 40)}) "
            f"{use['error'] or 'answered'} after {seconds_taken:.2f} s, digest {use['digest'][:12]}: "
            f"{_shorten_text(use['result'], 60)}"
        )
    ending = f" ({episode['ending']})" if episode["ending"] else ""
    failure = f": {_shorten_text(episode['failure'])}" if episode["failure"] else ""
    yield f"ended    {episode['status']}{ending}{failure}"
    yield f"verdict  {_format_verdict(episode)}"


def _format_step(step: dict[str, Any]) -> Iterator[str]:
    """Yield the lines on a training step: its metrics, whether they are as committed, and the checkpoints with its
    update."""
    row = step["row"] or {}
    numbers = [
        f"{name} {row[key]:.4g}"
        for name, key in (("reward", "train/reward"), ("loss", "loss"), ("grad", "grad_norm"), ("lr", "lr"))
        if isinstance(row.get(key), (int, float))
    ]
    version = f", policy version {row['version']}" if "version" in row else ""
    link = f"link {step['link']}" if step["link"] else "no link"
    link += ", NOT as committed" if step["as_committed"] is False else ""
    yield f"update   step {step['step']}{version} ({link}): {', '.join(numbers) or 'no row of metrics'}"
    present, first = step["checkpoints"], step["first_checkpoint"]
    if first is None:
        yield "saved    in no checkpoint yet"
    else:
        removed = "" if first in present else " (removed since)"
        yield f"saved    first with step {first}{removed}; present: {_format_checkpoints(present)}"


def _build_episode_table(trail: Trail) -> Table:
    """Build a table with one row per traced episode, at most MOST. A changed or removed episode has no values."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("episode", "task", "try", "calls", "tools", "reward", "step", "advantage", "trained", "line"):
        is_text = name in ("episode", "task")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
    for episode in trail.episodes[:MOST]:
        line = f"{parse_episode_step(episode['file'])}:{episode['line']}"
        if episode["as_committed"] is False or episode.get("gone"):
            cells = [episode["uuid"][:8], "removed" if episode.get("gone") else "CHANGED", *[""] * 7, line]
        else:
            cells = [
                episode["uuid"][:8], episode["task"], str(episode["repeat"]), str(len(episode["calls"])),
                str(len(episode["tools"])),
                format_number(episode["reward"], ".3g") if episode["status"] == "completed" else episode["status"],
                "–" if episode["trained_in"] is None else str(episode["trained_in"]),
                format_number(episode["advantage"], ".3g"),
                f"{episode['trained_tokens']}/{episode['sampled_tokens']}", line,
            ]  # fmt: skip
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _format_summary(trail: Trail) -> Iterator[str]:
    """Yield lines with the numbers of changed and unverified episodes, and the processes that ran them."""
    changed = sum(episode["as_committed"] is False for episode in trail.episodes)
    unknown = sum(episode["as_committed"] is None for episode in trail.episodes)
    if changed:
        yield f"{counted(changed, 'episode')} not as committed."
    if unknown:
        yield f"{counted(unknown, 'episode')} without a chain, or removed: not verified."
    if not changed and not unknown:
        yield f"{counted(len(trail.episodes), 'episode')}, each as committed."
    players = {_format_player(episode) for episode in trail.episodes if not episode.get("gone")} - {""}
    for player in sorted(players):
        yield f"played{player}"


def _format_commitment(episode: dict[str, Any]) -> str:
    """Format an episode's file and line, and whether the line equals its digest in the chain."""
    location = f"{episode['file']}:{episode['line']}"
    if episode.get("gone"):
        return f"{location} was removed; link {episode['link']} keeps its digest"
    if episode["as_committed"] is None:
        return f"{location}, recorded without a chain"
    return f"{location}, {'as committed' if episode['as_committed'] else 'NOT as committed'} by link {episode['link']}"


def _format_player(episode: dict[str, Any]) -> str:
    """Describe the process and the sampler that ran an attempt, or return "" if neither is recorded."""
    player = episode.get("played_by") or {}
    if not player and not episode.get("sampler"):
        return ""
    process = player.get("process") or {}
    versions = ", ".join(f"{name} {version}" for name, version in (player.get("versions") or {}).items())
    origin = f"process {process.get('pid')} on {process.get('host')}, backbone {player.get('backbone')}"
    if episode.get("sampler"):
        return f" by sampler {episode['sampler']}" + (f", for {origin} ({versions})" if player else "")
    return f" by {origin}, engine {player.get('engine')} ({versions})"


def _format_verdict(episode: dict[str, Any]) -> str:
    """Format reward, success, scorer and reason of an episode's verdict."""
    if episode["reward"] is None:
        return "no score" + (f": {_shorten_text(episode['verdict'])}" if episode["verdict"] else "")
    scores = ", ".join(f"{name} {format_number(value, '.3g')}" for name, value in episode["scores"].items())
    parts = [f"reward {episode['reward']:g}"]
    parts += [] if episode["success"] is None else ["success" if episode["success"] else "no success"]
    parts += [f"{episode['scorer']}{f' ({scores})' if scores else ''}"] if episode["scorer"] else []
    return ", ".join(parts) + (f": {_shorten_text(episode['verdict'])}" if episode["verdict"] else "")


def _format_untrained(episode: dict[str, Any]) -> str:
    """Format an episode's numbers of untrained tokens by reason in parentheses, or return "" without any."""
    counts = ", ".join(f"{count} {reason}" for reason, count in episode["untrained"].items() if count)
    return f" ({counts})" if counts else ""


def _format_checkpoints(steps: list[int]) -> str:
    """Format the names of the first three checkpoints and the number of the others."""
    names = ", ".join(f"step-{step}" for step in steps[:3]) or "none"
    return names + (f" and {len(steps) - 3} more" if len(steps) > 3 else "")


def _shorten_text(text: str | None, limit: int = WIDE) -> str:
    """Replace line breaks by spaces, and cut a text to `limit` characters."""
    text = " ".join((text or "").split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"

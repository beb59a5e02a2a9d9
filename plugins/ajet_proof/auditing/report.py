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


def _count_episodes(found: RunAudit) -> int:
    return sum(len(written.lines) for files in found.state.files.values() for written in files) if found.state else 0


def _format_run(found: RunAudit) -> Iterator[str]:
    state = found.state
    if state is None and found.ok:
        yield f"{found.run.name} has no chain, because it trained no step:"
        yield "changes of its files cannot be detected. `ajet prove` derives its tokens again."
    if state is not None:
        yield (
            f"{found.run.name}: {counted(state.links, 'link')}, {counted(len(state.steps), 'training step')}, "
            f"{counted(_count_episodes(found), 'episode')}, {counted(len(state.rows), 'row')} of metrics, "
            f"{counted(len(state.required), 'checkpoint')}"
        )
        yield f"head {state.head}"
        yield from _describe_chain(found)
    for each in found.altered[:MOST]:
        yield f"left out {each}"
    if len(found.altered) > MOST:
        yield f"and {len(found.altered) - MOST} more (--json lists all)"
    for change in found.changes[:MOST]:
        yield f"changed  {change}"
    if len(found.changes) > MOST:
        yield f"and {len(found.changes) - MOST} more (--json lists all)"
    if not found.ok:
        yield f"{counted(len(found.changes), 'change')} found."
    elif state is not None:
        yield "The record is as it was committed."


def _describe_chain(found: RunAudit) -> Iterator[str]:
    state = found.state
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


def _format_trail(found: Trail) -> Iterator[str | Table]:
    is_single = len({each["uuid"] for each in found.episodes}) == 1 and found.step is None
    if is_single:
        is_shown = False
        for episode in found.episodes:
            yield from _format_episode(episode, is_repeated=is_shown)
            is_shown = is_shown or not (episode["as_committed"] is False or episode.get("gone"))
    for step in found.steps:
        yield from _format_step(step)
    if not found.steps:
        yield "used     by no training step"
    if not is_single:
        yield _build_episode_table(found)
        if len(found.episodes) > MOST:
            yield f"{MOST} of {len(found.episodes)} episodes (--json lists all)"
        yield from _format_summary(found)


def _format_episode(each: dict[str, Any], *, is_repeated: bool) -> Iterator[str]:
    """Format an episode as lines.

    Args:
        each: facts of the episode's line.
        is_repeated: True if the episode was printed already, because another step trained it too.
    """
    yield f"{'again    ' if is_repeated else 'episode  '}{each['uuid']} · {_format_commitment(each)}"
    if each["as_committed"] is False or each.get("gone"):
        return
    if not is_repeated:
        yield from _format_attempt(each)
    if each["trained_in"] is not None:
        yield (
            f"used     in step {each['trained_in']}: advantage {format_number(each['advantage'], '.3g')}, "
            f"{each['trained_tokens']} of {each['sampled_tokens']} tokens trained{_format_untrained(each)}"
        )
    elif each["discarded"]:
        yield f"dropped  with its group: {each['discarded']}{_format_untrained(each)}"


def _format_attempt(each: dict[str, Any]) -> Iterator[str]:
    yield f"task     {each['task']}, attempt {each['repeat']}, {each['split']}: {_shorten_text(each['question'])}"
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["started"]))
    seconds = each["ended"] - each["started"]
    yield f"played   for step {each['played_for']}, {clock}, {seconds:.1f} s{_format_player(each)}"
    for number, call in enumerate(each["calls"][:MOST]):
        versions = ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in call["versions"])
        yield (
            f"call {number:<3} {call['agent']}: {call['prompt']} + {call['sampled']} tokens, policy version "
            f"{versions or 'none'}, {call['error'] or call['finish']}: {_shorten_text(call['said'])}"
        )
    for use in each["tools"][:MOST]:
        took = use["ended"] - use["started"]
        yield (
            f"tool     {use['name']}({_shorten_text(json.dumps(use['arguments'], ensure_ascii=False), 40)}) "
            f"{use['error'] or 'answered'} after {took:.2f} s, digest {use['digest'][:12]}: "
            f"{_shorten_text(use['result'], 60)}"
        )
    ending = f" ({each['ending']})" if each["ending"] else ""
    failure = f": {_shorten_text(each['failure'])}" if each["failure"] else ""
    yield f"ended    {each['status']}{ending}{failure}"
    yield f"verdict  {_format_verdict(each)}"


def _format_step(each: dict[str, Any]) -> Iterator[str]:
    row = each["row"] or {}
    numbers = [
        f"{name} {row[key]:.4g}"
        for name, key in (("reward", "train/reward"), ("loss", "loss"), ("grad", "grad_norm"), ("lr", "lr"))
        if isinstance(row.get(key), (int, float))
    ]
    version = f", policy version {row['version']}" if "version" in row else ""
    link = f"link {each['link']}" if each["link"] else "no link"
    link += ", NOT as committed" if each["as_committed"] is False else ""
    yield f"update   step {each['step']}{version} ({link}): {', '.join(numbers) or 'no row of metrics'}"
    present, first = each["checkpoints"], each["first_checkpoint"]
    if first is None:
        yield "saved    in no checkpoint yet"
    else:
        removed = "" if first in present else " (removed since)"
        yield f"saved    first with step {first}{removed}; present: {_format_checkpoints(present)}"


def _build_episode_table(found: Trail) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("episode", "task", "try", "calls", "tools", "reward", "step", "advantage", "trained", "line"):
        is_text = name in ("episode", "task")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
    for episode in found.episodes[:MOST]:
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


def _format_summary(found: Trail) -> Iterator[str]:
    changed = sum(episode["as_committed"] is False for episode in found.episodes)
    unknown = sum(episode["as_committed"] is None for episode in found.episodes)
    if changed:
        yield f"{counted(changed, 'episode')} not as committed."
    if unknown:
        yield f"{counted(unknown, 'episode')} without a chain, or removed: not verified."
    if not changed and not unknown:
        yield f"{counted(len(found.episodes), 'episode')}, each as committed."
    players = {_format_player(episode) for episode in found.episodes if not episode.get("gone")} - {""}
    for player in sorted(players):
        yield f"played{player}"


def _format_commitment(each: dict[str, Any]) -> str:
    location = f"{each['file']}:{each['line']}"
    if each.get("gone"):
        return f"{location} was removed; link {each['link']} keeps its digest"
    if each["as_committed"] is None:
        return f"{location}, recorded without a chain"
    return f"{location}, {'as committed' if each['as_committed'] else 'NOT as committed'} by link {each['link']}"


def _format_player(each: dict[str, Any]) -> str:
    """Describe the process and the sampler that an attempt was played by, or return "" if neither is recorded."""
    player = each.get("played_by") or {}
    if not player and not each.get("sampler"):
        return ""
    process = player.get("process") or {}
    versions = ", ".join(f"{name} {version}" for name, version in (player.get("versions") or {}).items())
    origin = f"process {process.get('pid')} on {process.get('host')}, backbone {player.get('backbone')}"
    if each.get("sampler"):
        return f" by sampler {each['sampler']}" + (f", for {origin} ({versions})" if player else "")
    return f" by {origin}, engine {player.get('engine')} ({versions})"


def _format_verdict(each: dict[str, Any]) -> str:
    if each["reward"] is None:
        return "no score" + (f": {_shorten_text(each['verdict'])}" if each["verdict"] else "")
    scores = ", ".join(f"{name} {format_number(value, '.3g')}" for name, value in each["scores"].items())
    parts = [f"reward {each['reward']:g}"]
    parts += [] if each["success"] is None else ["success" if each["success"] else "no success"]
    parts += [f"{each['scorer']}{f' ({scores})' if scores else ''}"] if each["scorer"] else []
    return ", ".join(parts) + (f": {_shorten_text(each['verdict'])}" if each["verdict"] else "")


def _format_untrained(each: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} {reason}" for reason, count in each["untrained"].items() if count)
    return f" ({counts})" if counts else ""


def _format_checkpoints(steps: list[int]) -> str:
    names = ", ".join(f"step-{step}" for step in steps[:3]) or "none"
    return names + (f" and {len(steps) - 3} more" if len(steps) > 3 else "")


def _shorten_text(text: str | None, limit: int = WIDE) -> str:
    text = " ".join((text or "").split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"

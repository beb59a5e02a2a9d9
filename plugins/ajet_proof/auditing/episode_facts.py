"""Facts of one episode line, without its arrays: worker, task, calls, tool uses, verdict, update.

Invariant: plain JSON values for a line of any schema; texts of models, tools and judges are cut, with their length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.record.episode_codec import require_schema

SHOWN = 400
"""Maximum characters of a text."""


def collect_episode_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of one line. Raises UserError for another schema, KeyError and similar for a malformed line."""
    require_schema(row)
    outcome, verdict = row.get("outcome") or {}, row.get("verdict") or {}
    calls = [_summarize_call(call, row["messages"]) for call in row["calls"]]
    sampled = sum(call["sampled"] for call in calls)
    untrained = dict(row["untrained"])
    for reason, count in (outcome.get("untrained") or {}).items():
        untrained[reason] = untrained.get(reason, 0) + count
    trained = sampled - sum(untrained.values()) if outcome.get("step") is not None else 0
    return {
        "uuid": row["uuid"],
        "task": row["task"]["task_id"],
        "question": _shorten_text(row["task"]["main_query"]),
        "group": row.get("group", ""),
        "order": row.get("order", -1),
        "repeat": row["repeat"],
        "split": row["split"],
        "played_for": row["step"],
        "run": row.get("run", ""),
        "sampler": row.get("sampler"),
        "policy": row.get("policy"),
        "started": row["started"],
        "ended": row["ended"],
        "attempts": row["attempts"],
        "status": row["status"],
        "ending": row.get("ending", ""),
        "failure": _format_failure(row["failure"]),
        "reward": verdict.get("reward"),
        "success": verdict.get("success"),
        "verdict": _shorten_text(verdict.get("reason", "")),
        "scorer": verdict.get("scorer", ""),
        "scores": verdict.get("parts") or {},
        "calls": calls,
        "tools": [_summarize_tool_use(use) for use in row.get("tool_uses", ())],
        "sampled_tokens": sampled,
        "trained_in": outcome.get("step"),
        "advantage": outcome.get("advantage"),
        "trained_tokens": trained,
        "untrained": untrained,
        "discarded": outcome.get("discarded"),
    }


def _summarize_call(call: Mapping[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    start, stop = call["response_ids"]
    fresh_start, fresh_stop = call["suffix_ids"]
    reply = messages[call["reply"]] if call["reply"] is not None else {}
    return {
        "agent": call["agent"],
        "target": call["target"],
        "trained": call["trained"],
        "prompt": call["prefix"] + fresh_stop - fresh_start,
        "sampled": stop - start,
        "versions": [run[1:] for run in call["versions"]],
        "finish": call["finish"],
        "error": call["error"],
        "started": call["started"],
        "ended": call["ended"],
        "said": _shorten_text(str(reply.get("content") or reply.get("tool_calls") or "")),
    }


def _summarize_tool_use(use: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: use.get(name) for name in ("name", "server", "call_id", "digest", "started", "ended")}
    return facts | {
        "arguments": use.get("arguments"),
        "result": _shorten_text(str(use.get("result", ""))),
        "error": use.get("error", ""),
    }


def _format_failure(failure: Mapping[str, Any] | None) -> str | None:
    return f"{failure['boundary']}: {failure['kind']}: {_shorten_text(failure['message'])}" if failure else None


def _shorten_text(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"

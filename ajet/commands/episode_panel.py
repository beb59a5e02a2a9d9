"""An episode as a person reads it in a terminal: what was said, with which tools, what came of it and why.

Invariant: a failed episode is shown with the boundary it failed at and the person's own lines that led there; frames of
others are counted, not shown. What a model wrote reaches the terminal without the control characters that it would
obey.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.panel import Panel
from rich.text import Text

from ajet.commands.own_frames import Frames, frames_of
from ajet.config.plugins import find_failure_hint
from ajet.record.console import console, counted, label, printable
from ajet.record.plain_json import strict_json
from ajet.schema.commands import installs, program
from ajet.task_judge.extraction import text_of

if TYPE_CHECKING:
    from ajet.schema.call import Call
    from ajet.schema.episode import Episode, Failure
    from ajet.schema.tool_use import ToolUse

SHOWN = 2000
"""Characters of one message that are shown; the record has all of it."""
SHOWN_FRAME_LINES = 6
"""Lines of a traceback without any line of the person's own that are shown, the last ones."""
IN_TITLE = 30
"""Characters of a judge's reason that the title has room for; a longer one stands below the answer."""
IN_LINE = 120
"""Characters of a tool's arguments that are shown."""
SHOWN_OWN = 5
"""The person's own frames that are shown, the last ones."""

HINTS = {
    "engine": "the engine failed: see the log in the run directory",
    "server": "start the model server that the message names, or mend its address and key",
    "judging model": "start the server that the message names, or mend model, base_url and api_key_env of the judge",
    "judge": "correct the judge as the message says",
    "environment": "start the environment's service, or mend its address",
    "tool": "a tool failed",
    "sandbox": "what untrusted code runs in was lost: `{program} doctor` looks at what this machine has for it",
    "ajet": "this is a bug in ajet: please report it with the log",
}
"""What to do about a failure at each boundary, and about servers of the user's; the agent's own frames say it, or the
failure's kind (`Plugin.failure_hints`)."""
RETURN_OF_A_PAIR = (
    "return the answer, and leave the reward to the judge; with a reward of the agent's own, return "
    "WorkflowOutput(reward=1.0, metadata={'final_answer': answer})"
)
_ITS_OWN = "if its client is to ask the model that is tuned, give it `tuner.as_oai_baseurl_apikey()`"
KIND_ADVICE = {"APIConnectionError": _ITS_OWN, "AuthenticationError": _ITS_OWN}
"""The same for exceptions that most often mean one thing; with the line that raised it."""


def show_episode(episode: Episode) -> None:
    """Show a panel: turns, tool calls, reward and why, forks, tokens that training would use."""
    lines = Text()
    for number, tools in enumerate(_tools(episode)):
        lines.append("tools: " if not number else "then: ", style="bold yellow")
        lines.append(f"{tools}\n", style="yellow")
    for agent, indices, call in _transcript(episode):
        if agent:
            lines.append(f"{printable(agent)} is asked\n", style="bold blue")
        for index in indices:
            _append_message(lines, episode.messages[index])
        if call.is_cut:
            lines.append(f"{_cut_mark(call)}\n", style="bold yellow")
    for use in episode.tool_uses:
        lines.append(_use(use), style="red" if use.error else "magenta")
    if judged := _judged(episode):
        lines.append(f"{judged}\n", style="bold")
    outcome, why = _outcome(episode)
    if episode.failure:
        _append_failure(lines, episode.failure)
    elif len(why) > IN_TITLE:
        lines.append(f"{outcome}: {printable(why)}\n", style=_colour(episode))
    lines.rstrip()
    title = f"{label(episode.task.task_id)} · attempt {episode.repeat} · "
    outcome += f" ({printable(why)})" if 0 < len(why) <= IN_TITLE else ""
    told = Text.assemble(printable(title), (outcome, _colour(episode)))
    console.print(Panel(lines, title=told, subtitle=Text(_footer(episode)), title_align="left"))


_NOT_INSTALLED = re.compile(r"No module named '([^.']+)[^']*'")


def hint_of(failure: Failure, workflow: type[object] | None = None) -> str:
    """A hint on what to do about a failure of a workflow; for the person's own code, the line where it ended."""
    if failure.kind == "ModuleNotFoundError" and (lacks := _NOT_INSTALLED.search(failure.message)):
        return f"install {printable(lacks[1])}, by the name that its package has: {installs(printable(lacks[1]))}"
    if failure.boundary == "engine" and "://" in failure.message:
        return HINTS["server"]
    if failure.boundary == "judge" and failure.own and failure.retryable:
        return HINTS["judging model"]
    if failure.boundary == "judge" and failure.kind == "timeout":
        return "see why that line does not end; only if the judge needs longer, raise `rollout.episode_timeout`"
    if failure.boundary == "judge" and "KeyError: 'final_answer'" in failure.message:
        return f"the judge was given no metadata['final_answer']: {find_failure_hint('wrong_type')}"
    own = frames_of(failure.traceback).own
    if failure.boundary == "judge" and own:
        return f"correct {printable(own[-1].place)}, where the judge raised"
    if failure.boundary != "agent":
        return HINTS[failure.boundary].replace("{program}", program())
    if failure.kind == "wrong_type" and "returned a tuple" in failure.message:
        return RETURN_OF_A_PAIR
    if known := find_failure_hint(failure.kind, workflow):
        return known
    if not own:
        return "the workflow raised, and no line of its own is in the traceback: the record has all of it"
    raised = f"correct {printable(own[-1].place)}; "
    return raised + KIND_ADVICE.get(failure.kind, "a breakpoint there works in this backbone")


def is_told_by_message(failure: Failure) -> bool:
    """True if the message of a failure says all, and its kind and ajet's own frames nothing."""
    return failure.kind == "JudgeFailure" or bool(find_failure_hint(failure.kind))


def _append_failure(lines: Text, failure: Failure) -> None:
    lines.append(f"✗ {failure.boundary}: {failure.kind}: {printable(failure.message)}\n", style="bold red")
    frames = frames_of(failure.traceback)
    for frame in frames.own[-SHOWN_OWN:]:
        lines.append(f"  {printable(frame.place)} in {printable(frame.function)}\n", style="red")
        if frame.code:
            lines.append(f"    {printable(frame.code)}\n", style="bold")
    if frames.own:
        lines.append(_others(frames), style="dim")
    elif not is_told_by_message(failure):
        lines.append("\n".join(_last_frames(failure)), style="red")


def _others(frames: Frames) -> str:
    """The frames that are not shown, in a line."""
    hidden = max(0, len(frames.own) - SHOWN_OWN)
    told = [counted(hidden, "earlier frame")] if hidden else []
    told += [f"{count} of {printable(package)}" for package, count in frames.others.most_common()]
    return f"  (not shown: {', '.join(told)})\n" if told else ""


def _colour(episode: Episode) -> str:
    if episode.status != "completed":
        return "bold red"
    if episode.reward is None:
        return "yellow"
    return "bold green" if episode.reward > 0 else "bold"


def _tools(episode: Episode) -> list[str]:
    """Each list of tools that the agent passed, by names and arguments, in order of use."""
    used = dict.fromkeys(call.tools for call in episode.calls if call.tools is not None)
    return [", ".join(_signature(tool) for tool in episode.tools[index]) or "none" for index in used]


def _use(use: ToolUse) -> str:
    """A line on a use of a tool: what was used, how long it took, how it failed."""
    asked = printable(strict_json(use.arguments))
    asked = asked if len(asked) <= IN_LINE else f"{asked[:IN_LINE]}…"
    named = printable(f"{use.server}: {use.name}" if use.server else use.name)
    return f"⚒ {named}({asked}) {use.ended - use.started:.2f} s{f' ✗ {use.error}' if use.error else ''}\n"


def _signature(tool: dict[str, Any]) -> str:
    """A tool as one calls it: name(argument: type, …)."""
    inner = tool.get("function")
    function: dict[str, Any] = inner if isinstance(inner, dict) else tool
    told = function.get("parameters") or function.get("input_schema") or {}
    given = told.get("properties") if isinstance(told, dict) else None
    arguments = [
        f"{name}: {kind}" if isinstance(about, dict) and isinstance(kind := about.get("type"), str) else str(name)
        for name, about in (given.items() if isinstance(given, dict) else ())
    ]
    return printable(f"{function.get('name', '?')}({', '.join(arguments)})")


def _last_frames(failure: Failure) -> list[str]:
    """The traceback's last lines, without the message that it ends with: it is shown above them."""
    frames, message = printable(failure.traceback.strip()), printable(failure.message.strip())
    if message and frames.endswith(message):
        frames = frames[: -len(message)].rpartition("\n")[0]
    lines = frames.splitlines()[-SHOWN_FRAME_LINES:]
    return lines if not lines or lines[0].strip(" ^~") else lines[1:]  # carets below a line that is cut off


def _outcome(episode: Episode) -> tuple[str, str]:
    """The outcome in two words, and the judge's reason."""
    if episode.status != "completed":
        return episode.status, ""
    if episode.verdict is None or episode.verdict.reward is None:
        return "no score", episode.verdict.reason.removeprefix("no score: ") if episode.verdict else ""
    return f"reward {episode.verdict.reward:g}", episode.verdict.reason


def _judged(episode: Episode) -> str:
    """The answer that judges are given, where it is not what the model said last; "" otherwise."""
    answer = episode.metadata.get("final_answer")
    if answer is None:
        return ""
    replies = [call.reply for call in episode.calls if call.reply is not None and call.is_delivered]
    said = episode.messages[replies[-1]].get("content") if replies else None
    words = text_of(answer)
    return "" if words.split() == text_of(said).split() else f"final_answer: {_clipped(words) or '(empty)'}"


def _footer(episode: Episode) -> str:
    trained = sum(timeline.sampled for timeline in episode.timelines)
    forks = Counter(call.fork for call in episode.calls if call.fork)
    parts = [
        counted(len(episode.calls), "call"),
        f"{counted(episode.sampled_tokens, 'token')} sampled",
        f"{trained} to train",
    ]
    parts += [f"{count} forked ({reason})" for reason, count in forks.items()]
    if cut := sum(call.is_cut for call in episode.calls):
        parts.append(f"{cut} cut")
    parts += [f"check: {check}" for check in episode.checks]
    return " · ".join(parts + [f"{episode.ended - episode.started:.1f} s"])


def _cut_mark(call: Call) -> str:
    """Return the line below a reply that a limit on tokens ended."""
    after = f" after {counted(len(call.response_ids), 'token')}" if len(call.response_ids) else ""
    limit = printable(str(call.extra.get("cut_by", "a limit on tokens")))
    return f"✂ the reply was cut{after}, by {limit}"


def _transcript(episode: Episode) -> list[tuple[str, list[int], Call]]:
    """Message indices in reading order: each call's messages that were not shown yet, then its reply. With them the
    agent whose call it is, where it is another one than before ("" where there is one agent), and the call."""
    several = len({call.agent for call in episode.calls}) > 1
    shown: set[int] = set()
    told: list[tuple[str, list[int], Call]] = []
    before = ""
    for call in episode.calls:
        new = list(dict.fromkeys(index for index in call.messages if index not in shown))
        if call.reply is not None:
            new.append(call.reply)  # also where another call had the same words for its reply
        shown.update(new)
        told.append((call.agent if several and call.agent != before else "", new, call))
        before = call.agent
    return told


def _append_message(lines: Text, message: dict[str, Any]) -> None:
    role = printable(str(message.get("role", "?")))
    style = {"assistant": "green", "tool": "magenta", "system": "dim"}.get(role, "cyan")
    lines.append(f"{role}: ", style=f"bold {style}")
    if message.get("reasoning_content"):
        lines.append(f"(thinks) {_clipped(message['reasoning_content'])}\n", style="dim")
    if message.get("content"):
        lines.append(_clipped(_as_text(message["content"])))
    elif role == "user":
        lines.append("(empty)", style="bold red")
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


def _clipped(content: Any) -> str:
    text = printable(content if isinstance(content, str) else str(content))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text) - SHOWN} more characters)"

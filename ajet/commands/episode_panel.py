"""Shows one episode on a terminal: messages, tool calls, reward and reason.

Invariants: a failed episode is shown with the failing side (boundary) and the user's own lines of the traceback. Frames
of packages are counted, not shown. A frame is the user's if its file is not in an installed package, Python or ajet. A
model's text reaches the terminal without control characters.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.panel import Panel
from rich.text import Text

from ajet.backbone.requirements import find_installed_version
from ajet.config.plugins import find_failure_hint, list_package_roots
from ajet.record.console import console, counted, label, printable
from ajet.record.plain_json import strict_json
from ajet.schema.commands import find_program, format_install
from ajet.task_judge.extraction import answer_text

if TYPE_CHECKING:
    from ajet.schema.call import Call
    from ajet.schema.episode import Episode, Failure
    from ajet.schema.tool_use import ToolUse


MAX_MESSAGE_CHARS = 2000
"""Characters shown of a message. The record has the full text."""
SHOWN_FRAME_LINES = 6
"""Last lines shown of a traceback without a frame of the user's code."""
MAX_TITLE_REASON = 30
"""Longest reason of a judge in the title. A longer reason is shown below the answer."""
MAX_ARGUMENT_CHARS = 120
"""Characters shown of a tool's arguments."""
MAX_OWN_FRAMES = 5
"""Maximum number of the user's frames shown, the last ones."""

HINTS = {
    "engine": "the engine failed: read the log in the run folder",
    "server": "start the model server that the message names, or correct its address and key",
    "judging model": "start the server that the message names, or correct model, base_url and api_key_env of the judge",
    "judge": "correct the judge as the message describes",
    "environment": "start the environment's service, or correct its address",
    "tool": "a tool failed",
    "sandbox": "the sandbox that runs untrusted code failed: `{program} doctor` checks the sandboxes of this machine",
    "ajet": "this is a bug in ajet: please report it, with the log in the run folder",
}
"""Advice for a failure at each boundary but the agent's, and for the user's servers."""
PAIR_ADVICE = (
    "return the answer and let the judge compute the reward; to set the reward in the agent, return "
    "WorkflowOutput(reward=1.0, metadata={'final_answer': answer})"
)
_CLIENT_ADVICE = (
    "if the client should call the trained model, give it the base URL and key of `tuner.as_oai_baseurl_apikey()`"
)
KIND_ADVICE = {"APIConnectionError": _CLIENT_ADVICE, "AuthenticationError": _CLIENT_ADVICE}
"""Advice for exceptions with one frequent cause, printed after the line that raised them."""


def show_episode(episode: Episode) -> None:
    """Print a panel with an episode's turns, tool calls, answer, reward and reason, and its counts of tokens."""
    lines = Text()
    for number, tools in enumerate(_list_tools(episode)):
        lines.append("tools: " if not number else "then: ", style="bold yellow")
        lines.append(f"{tools}\n", style="yellow")
    for agent, message_indices, call in _order_messages(episode):
        if agent:
            lines.append(f"{printable(agent)} is called\n", style="bold blue")
        for index in message_indices:
            _append_message(lines, episode.messages[index])
        if call.is_cut:
            lines.append(f"{_cut_mark(call)}\n", style="bold yellow")
    for use in episode.tool_uses:
        lines.append(_describe_tool_use(use), style="red" if use.error else "magenta")
    if answer := _describe_answer(episode):
        lines.append(f"{answer}\n", style="bold")
    outcome, reason = _describe_outcome(episode)
    if episode.failure:
        _append_failure(lines, episode.failure)
    elif len(reason) > MAX_TITLE_REASON:
        lines.append(f"{outcome}: {printable(reason)}\n", style=_outcome_colour(episode))
    lines.rstrip()
    title = f"{label(episode.task.task_id)} · attempt {episode.repeat} · "
    outcome += f" ({printable(reason)})" if 0 < len(reason) <= MAX_TITLE_REASON else ""
    heading = Text.assemble(printable(title), (outcome, _outcome_colour(episode)))
    console.print(Panel(lines, title=heading, subtitle=Text(_describe_footer(episode)), title_align="left"))


_NOT_INSTALLED = re.compile(r"No module named '([^.']+)[^']*'")


def find_hint(failure: Failure, workflow: type[object] | None = None) -> str:
    """Return what to do about a failure, as precisely as its kind, message and traceback allow.

    Args:
        workflow: The agent's class, for advice that depends on it.
    """
    missing_module = _NOT_INSTALLED.search(failure.message) if failure.kind == "ModuleNotFoundError" else None
    if missing_module and not find_installed_version(missing_module[1]):
        package = printable(missing_module[1])
        return f"install {package}, by the name of its package: {format_install(package)}"
    if failure.boundary == "engine" and "://" in failure.message:
        return HINTS["server"]
    if failure.boundary == "judge" and failure.own and failure.retryable:
        return HINTS["judging model"]
    if failure.boundary == "judge" and failure.kind == "timeout":
        return "find out why that line does not end; only if the judge needs more time, raise `rollout.episode_timeout`"
    if failure.boundary == "judge" and "KeyError: 'final_answer'" in failure.message:
        return f"the workflow returned no metadata['final_answer'] for the judge: {find_failure_hint('wrong_type')}"
    own_frames = parse_traceback(failure.traceback).own
    if failure.boundary == "judge" and own_frames:
        return f"correct {printable(own_frames[-1].place)}, where the judge raised the error"
    if failure.boundary != "agent":
        return HINTS[failure.boundary].replace("{program}", find_program())
    if failure.kind == "wrong_type" and "returned a tuple" in failure.message:
        return PAIR_ADVICE
    if known_hint := find_failure_hint(failure.kind, workflow):
        return known_hint
    if not own_frames:
        return (
            "the workflow raised an error, and none of its own lines is in the traceback: read the complete "
            "traceback in the record"
        )
    correction = f"correct {printable(own_frames[-1].place)}; "
    return correction + KIND_ADVICE.get(failure.kind, "set a breakpoint there: breakpoints work with --backbone debug")


def is_message_enough(failure: Failure) -> bool:
    """Return True if the failure's message explains it, so that its type and traceback need not be shown."""
    return failure.kind == "JudgeFailure" or bool(find_failure_hint(failure.kind))


def _append_failure(lines: Text, failure: Failure) -> None:
    """Add a failure to the panel.

    It shows where the failure happened (agent, environment, judge, …), its message, and the user's own lines of the
    traceback.
    """
    lines.append(f"✗ {failure.boundary}: {failure.kind}: {printable(failure.message)}\n", style="bold red")
    frames = parse_traceback(failure.traceback)
    for frame in frames.own[-MAX_OWN_FRAMES:]:
        lines.append(f"  {printable(frame.place)} in {printable(frame.function)}\n", style="red")
        if frame.code:
            lines.append(f"    {printable(frame.code)}\n", style="bold")
    if frames.own:
        lines.append(_count_hidden_frames(frames), style="dim")
    elif not is_message_enough(failure):
        lines.append("\n".join(_last_frames(failure)), style="red")


def _count_hidden_frames(frames: TracebackFrames) -> str:
    """Return a line with the numbers of stack frames that are not shown, by package, or "" if all are."""
    hidden_count = max(0, len(frames.own) - MAX_OWN_FRAMES)
    parts = [counted(hidden_count, "earlier frame")] if hidden_count else []
    parts += [f"{count} of {printable(package)}" for package, count in frames.others.most_common()]
    return f"  (not shown: {', '.join(parts)})\n" if parts else ""


def _outcome_colour(episode: Episode) -> str:
    """Return the style of an episode's outcome: red for a failure, yellow without score, green for a reward above 0."""
    if episode.status != "completed":
        return "bold red"
    if episode.reward is None:
        return "yellow"
    return "bold green" if episode.reward > 0 else "bold"


def _list_tools(episode: Episode) -> list[str]:
    """Return each list of tools that the agent sent, as text with names and arguments, in order of first use."""
    tool_indices = dict.fromkeys(call.tools for call in episode.calls if call.tools is not None)
    return [", ".join(_tool_signature(tool) for tool in episode.tools[index]) or "none" for index in tool_indices]


def _describe_tool_use(use: ToolUse) -> str:
    """Return a line on one use of a tool: name, arguments, seconds, and the error if there was one."""
    arguments = printable(strict_json(use.arguments))
    arguments = arguments if len(arguments) <= MAX_ARGUMENT_CHARS else f"{arguments[:MAX_ARGUMENT_CHARS]}…"
    tool_name = printable(f"{use.server}: {use.name}" if use.server else use.name)
    return f"⚒ {tool_name}({arguments}) {use.ended - use.started:.2f} s{f' ✗ {use.error}' if use.error else ''}\n"


def _tool_signature(tool: dict[str, Any]) -> str:
    """Return a tool's JSON definition as `name(argument: type, …)`."""
    function_field = tool.get("function")
    function: dict[str, Any] = function_field if isinstance(function_field, dict) else tool
    schema = function.get("parameters") or function.get("input_schema") or {}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    arguments = [
        f"{name}: {kind}"
        if isinstance(schema_part, dict) and isinstance(kind := schema_part.get("type"), str)
        else str(name)
        for name, schema_part in (properties.items() if isinstance(properties, dict) else ())
    ]
    return printable(f"{function.get('name', '?')}({', '.join(arguments)})")


def _last_frames(failure: Failure) -> list[str]:
    """Return the last lines of a traceback, without the exception's message, which is shown above them."""
    traceback_text, message = printable(failure.traceback.strip()), printable(failure.message.strip())
    if message and traceback_text.endswith(message):
        traceback_text = traceback_text[: -len(message)].rpartition("\n")[0]
    lines = traceback_text.splitlines()[-SHOWN_FRAME_LINES:]
    return lines if not lines or lines[0].strip(" ^~") else lines[1:]  # carets below a cut line


def _describe_outcome(episode: Episode) -> tuple[str, str]:
    """Return an episode's outcome in one or two words, and the judge's reason or ""."""
    if episode.status != "completed":
        return episode.status, ""
    if episode.verdict is None or episode.verdict.reward is None:
        return "no score", episode.verdict.reason.removeprefix("no score: ") if episode.verdict else ""
    return f"reward {episode.verdict.reward:g}", episode.verdict.reason


def _describe_answer(episode: Episode) -> str:
    """Return the answer that judges get, or "" if it is the model's last reply, which is shown anyway."""
    answer = episode.metadata.get("final_answer")
    if answer is None:
        return ""
    replies = [call.reply for call in episode.calls if call.reply is not None and call.is_delivered]
    reply = episode.messages[replies[-1]].get("content") if replies else None
    answer_words = answer_text(answer)
    return (
        ""
        if answer_words.split() == answer_text(reply).split()
        else f"final_answer: {_clip_text(answer_words) or '(empty)'}"
    )


def _describe_footer(episode: Episode) -> str:
    """Return the counts below an episode: calls, tokens, forks, cut replies, failed checks, seconds."""
    trainable_tokens = sum(timeline.sampled for timeline in episode.timelines)
    forks = Counter(call.fork for call in episode.calls if call.fork)
    parts = [
        counted(len(episode.calls), "call"),
        f"{counted(episode.sampled_tokens, 'token')} sampled",
        f"{trainable_tokens} to train",
    ]
    parts += [f"{count} forked ({reason})" for reason, count in forks.items()]
    if cut_count := sum(call.is_cut for call in episode.calls):
        parts.append(f"{cut_count} cut")
    parts += [f"check: {check}" for check in episode.checks]
    return " · ".join(parts + [f"{episode.ended - episode.started:.1f} s"])


def _cut_mark(call: Call) -> str:
    """Return the line that marks a reply as cut, with the limit on tokens that cut it."""
    length_text = f" after {counted(len(call.response_ids), 'token')}" if len(call.response_ids) else ""
    limit = printable(str(call.extra.get("cut_by", "a limit on tokens")))
    return f"✂ the reply was cut short{length_text}, by {limit}"


def _order_messages(episode: Episode) -> list[tuple[str, list[int], Call]]:
    """Return (agent, indices of messages to show, call) for each call.

    Shown are the messages that no earlier call has, then the reply. The agent is "" if it is that of the call before.
    """
    has_several_agents = len({call.agent for call in episode.calls}) > 1
    printed_indices: set[int] = set()
    ordered: list[tuple[str, list[int], Call]] = []
    previous_agent = ""
    for call in episode.calls:
        new_indices = list(dict.fromkeys(index for index in call.messages if index not in printed_indices))
        if call.reply is not None:
            new_indices.append(call.reply)  # even if another call had an equal reply
        printed_indices.update(new_indices)
        ordered.append((call.agent if has_several_agents and call.agent != previous_agent else "", new_indices, call))
        previous_agent = call.agent
    return ordered


def _append_message(lines: Text, message: dict[str, Any]) -> None:
    """Add a message to the panel: role, reasoning, content and tool calls."""
    role = printable(str(message.get("role", "?")))
    style = {"assistant": "green", "tool": "magenta", "system": "dim"}.get(role, "cyan")
    lines.append(f"{role}: ", style=f"bold {style}")
    if message.get("reasoning_content"):
        lines.append(f"(thinks) {_clip_text(message['reasoning_content'])}\n", style="dim")
    if message.get("content"):
        lines.append(_clip_text(_content_text(message["content"])))
    elif role == "user":
        lines.append("(empty)", style="bold red")
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        lines.append(
            f"\n  → {printable(str(function.get('name')))}({_clip_text(function.get('arguments'))})", style="yellow"
        )
    lines.append("\n")


def _content_text(content: Any) -> str:
    """Return a message's content as text, in which an image or other part is only named."""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text") or f"[{part.get('type', 'part')}]" for part in content)


def _clip_text(content: Any) -> str:
    """Return printable text of at most `MAX_MESSAGE_CHARS` characters, with the number of those left out."""
    text = printable(content if isinstance(content, str) else str(content))
    return (
        text
        if len(text) <= MAX_MESSAGE_CHARS
        else f"{text[:MAX_MESSAGE_CHARS]}… ({len(text) - MAX_MESSAGE_CHARS} more characters)"
    )


_FRAME = re.compile(r'^[ |+-]*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](?P<package>[^/\\.]+)")
_PYTHON = re.compile(r"[/\\]lib[/\\]python3[^/\\]*[/\\]")
_OURS = tuple(f"{root}/" for root in list_package_roots())
_STANDARD = f"{sysconfig.get_paths()['stdlib']}/"


@dataclass(frozen=True, slots=True)
class OwnFrame:
    """A stack frame in the user's code, as a traceback names it."""

    file: str
    line: int
    function: str
    code: str
    """Source line, or "" if the traceback does not have the line."""

    @property
    def place(self) -> str:
        """file:line as editors open it, relative if the file lies below the working directory."""
        path = Path(self.file)
        working_directory = Path.cwd()
        return f"{path.relative_to(working_directory) if path.is_relative_to(working_directory) else path}:{self.line}"


@dataclass(frozen=True, slots=True)
class TracebackFrames:
    """The stack frames of a formatted traceback, split into the user's and others'."""

    own: tuple[OwnFrame, ...]
    """Frames of the user's code in order, each place once. The last frame raised."""
    others: Counter[str]
    """TracebackFrames by package: the packages' names, "Python", "ajet"."""


def parse_traceback(traceback: str) -> TracebackFrames:
    """Return the frames in a formatted traceback, with those of all chained exceptions."""
    own_frames: dict[tuple[str, int], OwnFrame] = {}
    frame_counts = Counter[str]()
    for frame in _parse_frames(traceback.splitlines()):
        package = _find_package(frame.file)
        if package:
            frame_counts[package] += 1
        else:
            own_frames[frame.file, frame.line] = frame
    return TracebackFrames(tuple(own_frames.values()), frame_counts)


def _parse_frames(lines: list[str]) -> Iterator[OwnFrame]:
    """Yield the frames in the lines of a traceback, each with its source line if the traceback has it."""
    for index, line in enumerate(lines):
        if (match := _FRAME.match(line)) is not None:
            code = lines[index + 1].strip(" |") if index + 1 < len(lines) else ""
            if _FRAME.match(lines[index + 1] if index + 1 < len(lines) else "") or not line.startswith(" "):
                code = ""
            yield OwnFrame(match["file"], int(match["line"]), match["function"] or "", code)


def _find_package(file: str) -> str:
    """Return the package of a file ("ajet", "Python" or an installed one), or "" for the user's own file."""
    if file.startswith(_OURS):
        return "ajet"
    if (installed_match := _INSTALLED.search(file)) is not None:
        return installed_match["package"]
    if file.startswith((_STANDARD, "<")) or _PYTHON.search(file):
        return "Python"
    return ""

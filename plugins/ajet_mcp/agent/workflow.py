"""McpAgentWorkflow: the agent loop of model calls and tool calls, until the model answers.

Invariants: all attempts of a run get the same tools. Each reply enters the conversation unchanged. An attempt ends with
an answer, at `max_steps`, or by a policy key of `rollout.mcp_agent`, and its output names the reason. A lost server
fails the attempt, and so does a failed tool if `on_tool_failure` is `end`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ajet.environment.replay import replays_alone
from ajet.schema.errors import ConfigError, ToolFailure, UserError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.schema.tool_use import POLICY_ERRORS, ToolUse
from ajet.task_judge.extraction import AnswerForm, find_form
from ajet.workflow.workflow import Workflow
from ajet_mcp.agent.conversation import Conversation, TokenCounts, forget
from ajet_mcp.browse import Condenser, browse_agent_of
from ajet_mcp.confined import require_sandbox
from ajet_mcp.contract import CallFailedError, Limits
from ajet_mcp.results import Shown
from ajet_mcp.servers import KEY, servers_of
from ajet_mcp.toolset import Toolset

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.workflow.tuner import ModelTuner

REPEATS = 3
"""Number of equal replies in a row to count as a repetition."""


class McpAgentWorkflow(Workflow):
    """The agent of `rollout.user_workflow: mcp_agent` (docs/mcp.md).

    Override `outcome` to set a reward from the answer and the statistics.
    """

    name: str = "mcp_agent"

    @classmethod
    def check(cls, config: Any) -> None:
        """Check tools, sandbox and browse agent at the start of a run. The launch checks that servers can be reached.

        Raises:
            ConfigError: no tools are configured, a confined server has no sandbox, or a requested browse agent is
                missing.
        """
        require_sandbox(_select_servers(config))
        browse_agent_of(config)
        forget(_run_of(config))

    @classmethod
    def needs_judge(cls, config: Any) -> bool:
        """Return True if a judge must score the output: no subclass overrides `execute` or `outcome`."""
        return cls.execute is McpAgentWorkflow.execute and cls.outcome is McpAgentWorkflow.outcome

    @classmethod
    def opening(cls, config: Any, task: Task) -> list[dict[str, Any]]:
        """Return the first messages of an attempt at the task."""
        form = find_form(task.metadata, config.ajet.task_judge.answer_schema)
        return _build_opening(task, config.ajet.rollout.mcp_agent, form)

    @classmethod
    async def told(cls, config: Any) -> list[dict[str, Any]]:
        """Return the tool definitions that the model gets in `tools`.

        Servers are queried as in an attempt. Servers given as a command are started, queried and ended.

        Raises:
            CallFailedError: a server does not list its tools.
        """

        def keep(use: ToolUse) -> None:
            raise AssertionError("listing tools calls no tool")

        async def count(text: str) -> int:
            raise AssertionError("listing tools cuts no result")

        async with await Toolset.open(_select_servers(config), keep=keep, count=count, limits=Limits()) as toolset:
            return toolset.definitions

    @classmethod
    def list_tools(cls, experiment: Experiment, *, start: bool) -> list[dict[str, Any]] | None:
        """Return the tool definitions that the model gets, outside an event loop.

        Args:
            start: False to start no server process. The result is then None if a server is given as a command.

        Raises:
            UserError: the tools cannot be listed.
        """
        commands = [server.command for server in _select_servers(experiment.config) if server.kind == "stdio"]
        if commands and not start:
            return None
        try:
            with ThreadPoolExecutor(1) as thread:  # the caller's thread may run a loop
                return thread.submit(asyncio.run, cls.told(experiment.config)).result()
        except CallFailedError as problem:
            other_python = next((command[0] for command in commands if _is_other_python(command)), None)
            do = (
                f"write {{python}} instead of {other_python}, a Python without ajet's packages"
                if other_python
                else "start the server, or correct environment.use"
            )
            raise UserError(f"The tools cannot be listed: {problem}", where=KEY, do=do) from None

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner, /) -> WorkflowOutput:
        """Open the tools, run the agent loop, and return the outcome."""
        rollout = tuner.config.ajet.rollout
        settings = rollout.mcp_agent
        client = tuner.as_raw_openai_sdk_client(agent_name=self.name)
        count = TokenCounts(client, _run_of(tuner.config))
        browse = _build_condenser(tuner, count)
        toolset = await Toolset.open(
            _select_servers(tuner.config),
            keep=tuner.tool_used,
            count=count,
            limits=Limits(),
            result_tokens=settings.max_result_tokens or rollout.max_model_len // 4,
            images=count.sees_images,
            browse=browse,
            replay=tuner.replay,
            pin=tuner.pin,
        )
        await tuner.resources.enter_async_context(toolset)
        if browse is not None and not toolset.browsed:
            browse.warn_of_no_tool([definition["function"]["name"] for definition in toolset.definitions])
        form = find_form(workflow_task.task.metadata, tuner.config.ajet.task_judge.answer_schema)
        reply_room = min(rollout.max_response_length_in_one_turn, rollout.max_model_len // 4)
        opening = self.opening(tuner.config, workflow_task.task)
        conversation = Conversation(opening, rollout.max_model_len, reply_room)
        play = _Play(client, toolset, conversation, form, settings, count)
        answer = await play.run(settings.max_steps or rollout.multi_turn.max_steps)
        stats = play.build_stats() | {"tools": toolset.pinned.digest}
        if browse is not None:
            stats |= {f"browse_{name}": count for name, count in browse.counts.items()}
        return self.outcome(workflow_task, answer, stats)

    def outcome(self, workflow_task: WorkflowTask, answer: str | None, told: dict[str, Any]) -> WorkflowOutput:
        """Build the workflow's output, which a judge scores. Override it to set a reward.

        Args:
            answer: the final answer, or None if the attempt ended without one.
            told: statistics of the attempt, such as steps, tool calls and the reason of the end.
        """
        numbers = {name: value for name, value in told.items() if isinstance(value, int)}
        # With an empty schema the judge takes the answer as it is, since it has been extracted from the reply here.
        metadata = {
            "final_answer": answer or "",
            "answer_schema": "",
            "mcp_agent": told,
        }
        return WorkflowOutput(metadata=metadata, log_metrics={"mcp_agent": numbers})


class _Turn(NamedTuple):
    """One reply of the model.

    `message`: the complete chat message. `text`: its content. `calls`: its tool calls.
    """

    message: dict[str, Any]
    text: str
    calls: list[Any]


class _Play:
    """Runs the agent loop of one attempt: request a reply, run its tool calls, until an answer."""

    def __init__(
        self,
        client: Any,
        toolset: Toolset,
        conversation: Conversation,
        form: AnswerForm,
        settings: Any,
        count: TokenCounts,
    ) -> None:
        self._client = client
        self._toolset = toolset
        self._conversation = conversation
        self._answer_form = form
        self._count = count
        self._on_overflow = settings.on_overflow
        self._action_on = {event: settings[f"on_{event}"] for event in ("format_error", "repetition", "tool_failure")}
        self._parallel_slots = asyncio.Semaphore(settings.parallel)
        self._counts: Counter[str] = Counter()
        self._ended_by = "max_steps"
        self._tokens = 0
        """Tokens of prompt and reply of the last request."""
        self._last_replies: list[str] = []
        """The last `REPEATS` replies, to detect repetitions."""

    async def run(self, max_steps: int) -> str | None:
        """Return the final answer, or None if the attempt ends without an answer.

        Raises:
            CallFailedError: a server is lost.
            ToolFailure: a tool failed and `on_tool_failure` is `end`.
            openai.OpenAIError: a request to the model is refused.
        """
        for step in range(max_steps):
            await self._make_room(step)
            turn = await self._request_turn(step)
            self._counts["steps"] += 1
            if self._is_repeated(turn) and self._count_end("repetition"):
                return None
            if turn.calls:
                results = await asyncio.gather(*(self._use_tool(call) for call in turn.calls))
                for call, result in zip(turn.calls, results, strict=True):
                    self._conversation.add({"role": "tool", "tool_call_id": call.id, "content": result.content})
                if any(result.error in POLICY_ERRORS for result in results) and self._count_end("format_error"):
                    return None
                continue
            answer = self._answer_form.read(turn.text)
            if answer is not None and answer.strip():
                self._ended_by = "answer"
                return answer.strip()
            if self._count_end("format_error"):
                return None
            self._conversation.add(
                {"role": "user", "content": f"There is no answer in your reply. {self._answer_form.instruction}"}
            )
        return None

    def build_stats(self) -> dict[str, Any]:
        """Return the counts and context changes of the attempt, for the record."""
        names = ("steps", "tool_calls", "format_error", "repetition", "tool_failure")
        changes = self._conversation.changes
        counts = {name: self._counts[name] for name in names} | {"context_changes": len(changes)}
        return {"ended_by": self._ended_by, **counts, "context": changes}

    async def _request_turn(self, step: int) -> _Turn:
        """Request a reply, and append it to the conversation.

        If the server refuses the prompt as too long, the conversation is shortened once, as `on_overflow` says.

        Raises:
            openai.BadRequestError: the prompt is refused, and shortening is off, useless or has not helped.
        """
        import openai

        try:
            turn = await self._send_messages(self._conversation.messages)
        except openai.BadRequestError as refused:
            overflow_mode = self._on_overflow
            can_shorten = refused.code == "context_length_exceeded" and not self._conversation.is_at_its_shortest
            if not can_shorten or overflow_mode == "disabled":
                raise
            # A summary would need a request with the same prompt, which is too long already.
            self._conversation.shorten("discard_all" if overflow_mode == "summarize" else overflow_mode, step)
            turn = await self._send_messages(self._conversation.messages)
        self._conversation.replied(turn.message, self._tokens)
        return turn

    async def _send_messages(self, messages: list[dict[str, Any]]) -> _Turn:
        """Request one reply to the messages, with the tools, and store its token count."""
        options = {"tools": self._toolset.definitions} if self._toolset.definitions else {}
        reply = await self._client.chat.completions.create(messages=messages, **options)
        choice = reply.choices[0]
        self._tokens = reply.usage.total_tokens if reply.usage is not None else 0
        calls = [call for call in choice.message.tool_calls or [] if call.type == "function"]
        message = choice.message.model_dump(exclude_none=True)
        return _Turn(message, choice.message.content or "", calls)

    async def _make_room(self, step: int) -> None:
        """Shorten the conversation as `on_overflow` says if the next prompt would be too long.

        "summarize" first requests a summary from the model, which counts as a step.
        """
        overflow_mode, conversation = self._on_overflow, self._conversation
        if (
            overflow_mode == "disabled"
            or conversation.is_at_its_shortest
            or not await conversation.would_overflow(self._count)
        ):
            return
        summary = ""
        if overflow_mode == "summarize":
            turn = await self._send_messages(conversation.for_summary())
            self._counts["steps"] += 1
            summary = turn.text.strip()
        conversation.shorten(overflow_mode if summary or overflow_mode != "summarize" else "discard_all", step, summary)

    async def _use_tool(self, call: Any) -> Shown:
        """Run one tool call of the model, at most `parallel` at the same time, and return the result.

        Raises:
            ToolFailure: the tool failed and `on_tool_failure` is "end". A mistake of the model never raises.
        """
        async with self._parallel_slots:
            result = await self._toolset.use(call.function.name, call.function.arguments, call.id)
        self._counts["tool_calls"] += 1
        if result.error and result.error not in POLICY_ERRORS:
            self._counts["tool_failure"] += 1
            if self._action_on["tool_failure"] == "end":
                raise ToolFailure(f"{call.function.name}: {result.text}")
        return result

    def _is_repeated(self, turn: _Turn) -> bool:
        """Return True if this is the third equal reply in a row. Replies with calls are equal if their calls are."""
        calls = [(call.function.name, _sort_arguments(call.function.arguments)) for call in turn.calls]
        self._last_replies = [*self._last_replies, json.dumps([turn.text if not calls else "", calls])][-REPEATS:]
        return len(self._last_replies) == REPEATS and len(set(self._last_replies)) == 1

    def _count_end(self, event: str) -> bool:
        """Count an event ("repetition", "format_error"). Return True if the settings end the attempt for it."""
        self._counts[event] += 1
        if self._action_on[event] == "continue":
            return False
        self._ended_by = event
        return True


def _select_servers(config: Any) -> Any:
    """Return the tool servers of the run, or () if recorded results replace them.

    Raises:
        ConfigError: `environment.use` is not set or unusable.
    """
    use = config.ajet.environment.use
    if replays_alone(config.ajet.environment):
        return ()
    if not use:
        raise ConfigError(
            "The agent mcp_agent has no tools: environment.use is not set.",
            where="ajet.environment.use",
            expected="an MCP server: http://HOST:PORT/mcp, a command, or a file with `mcpServers`",
            do="see docs/mcp.md",
        )
    return servers_of(use, config.ajet.base_dir)


def _build_condenser(tuner: ModelTuner, count: TokenCounts) -> Condenser | None:
    """Return the browse agent of the attempt, or None if the run has none."""
    agent = browse_agent_of(tuner.config)
    if agent is None:
        return None
    on_failure = tuner.config.ajet.rollout.mcp_agent.on_tool_failure

    def time_left() -> float:
        return tuner.time_left

    return Condenser(agent, keep=tuner.tool_used, count=count, time_left=time_left, on_failure=on_failure)


def _run_of(config: Any) -> str:
    """Return a key for data cached per run within this process."""
    return f"{config.ajet.base_dir}\n{config.ajet.environment.use}"


def _build_opening(task: Task, settings: Any, form: AnswerForm) -> list[dict[str, Any]]:
    """Return the system prompt and the messages of the task."""
    messages = [dict(message) for message in task.init_messages] or [{"role": "user", "content": task.main_query}]
    if messages[0].get("role") == "system" and settings.system_prompt is None:
        return messages
    system = (
        settings.system_prompt
        if settings.system_prompt is not None
        else f"Use the tools to find out. {form.instruction}"
    )
    return [{"role": "system", "content": system}, *messages]


def _sort_arguments(arguments: str) -> str:
    """Return JSON arguments with sorted keys, so that equal calls are equal texts; other text unchanged."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _is_other_python(command: Sequence[str]) -> bool:
    """Return True if the command starts another Python than ajet's, so ajet's packages may be missing."""
    program = shutil.which(command[0]) if command else None
    is_python = program is not None and re.fullmatch(r"python[\d.]*", Path(command[0]).name) is not None
    return is_python and Path(str(program)).absolute() != Path(sys.executable).absolute()

"""Whether the tools of `environment.use` leave room in the prompt, before anything costly begins.

Invariant: the tools and the first task's messages are counted as the model is given them; where no reply would have
room, that is one UserError with both numbers. Only of the agent that comes with ajet is it known that the model is told
of all tools, and only where this process has the model's tokenizer.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.environment.mcp import CallFailed, servers_of
from ajet.environment.mcp.servers import KEY
from ajet.environment.replay import replays_alone
from ajet.rollout.wiring import renderer_of, workflow_of
from ajet.run.review import REPLY
from ajet.schema.errors import UserError
from ajet.workflow.mcp_agent import McpAgentWorkflow

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.schema.task import Task
    from ajet.tokens.renderer import Rendered


@dataclass(frozen=True, slots=True)
class ToolRoom:
    """The room that tools take in the first task's prompt."""

    tools: tuple[str, ...]
    """Their names."""
    tokens: int
    """That they take."""
    prompt: Rendered
    """With them."""


def require_room_for_tools(experiment: Experiment) -> None:
    """Before a run, on every backbone. Raises UserError."""
    from ajet.engine.model_source import locate
    from ajet.engine.models import load_tokenizer
    from ajet.task_reader import open_reader

    model = experiment.ajet.model
    if _knowable(experiment) and model.path is not None:
        task = open_reader(experiment).tasks("train")[0]
        folder = locate(model.path, base=experiment.base, trust_remote_code=model.trust_remote_code)
        tool_room(experiment, task, load_tokenizer(folder))


def tool_room(experiment: Experiment, task: Task, tokenizer: Any, *, start: bool = True) -> ToolRoom | None:
    """The room that tools take; None where it cannot be known; without `start` servers that are commands are not
    started, and so not known. Raises UserError where the tools leave no room."""
    if not _knowable(experiment):
        return None
    servers = servers_of(str(experiment.ajet.environment.use), experiment.base)
    if not start and any(server.kind == "stdio" for server in servers):
        return None
    agent = workflow_of(experiment)
    assert issubclass(agent, McpAgentWorkflow)
    try:
        with ThreadPoolExecutor(1) as thread:  # the caller's may run a loop
            told = thread.submit(asyncio.run, agent.told(experiment.config)).result()
    except CallFailed as problem:
        others = [each.command[0] for each in servers if each.kind == "stdio" and _is_other_python(each.command)]
        do = f"write {{python}} for {others[0]}, which is another Python" if others else "mend or start their server"
        raise UserError(f"The tools cannot be listed: {problem}", where=KEY, do=do) from None
    renderer = renderer_of(experiment.ajet, tokenizer)
    opening = agent.opening(experiment.config, task)
    prompt, bare = renderer.render(opening, told), renderer.render(opening)
    names = tuple(each["function"]["name"] for each in told)
    found = ToolRoom(names, len(prompt.ids) - len(bare.ids), prompt)
    room = experiment.ajet.rollout.max_model_len - REPLY
    if len(prompt.ids) > room:
        raise UserError(
            f"The tools do not fit: {len(names)} take {found.tokens} tokens, and the prompt has room for {room}, of "
            f"which the first task and the system prompt take {len(bare.ids)}.",
            where="ajet.rollout.max_model_len",
            expected=f"more than {len(prompt.ids) + REPLY}, or fewer tools; there are {_some(names)}",
            do="raise it, or leave tools out (`tools:` in the file of the environment, or fewer servers)",
        )
    return found


def _knowable(experiment: Experiment) -> bool:
    settings = experiment.ajet
    drops = settings.rollout.force_disable_toolcalls or settings.rollout.engine == "endpoint"
    if not settings.environment.use or drops or replays_alone(settings.environment):
        return False
    return issubclass(workflow_of(experiment), McpAgentWorkflow)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _is_other_python(command: Sequence[str]) -> bool:
    """True for a Python that is not the one of ajet, and lacks what is installed there."""
    found = shutil.which(command[0]) if command else None
    is_python = found is not None and re.fullmatch(r"python[\d.]*", Path(command[0]).name) is not None
    return is_python and Path(str(found)).absolute() != Path(sys.executable).absolute()


def counts_tools_later(experiment: Experiment) -> bool:
    """True if the tools of the first prompt are known only once a launch has started their server."""
    if not _knowable(experiment):
        return False
    servers = servers_of(str(experiment.ajet.environment.use), experiment.base)
    return any(server.kind == "stdio" for server in servers)

"""`ajet chat RUN`: talk to a run's tuned model, or to the run's agent with the tuned model.

Invariants: the weights are from the run's best checkpoint (the latest without a validation), with the engine and chat
template of training. The agent is the run's own workflow with its tools, run as in training but without judge, since a
user's question has no reference. The record provides weights and settings only. Code comes from the user's project.
Addresses and environment come from no record (a YAML of --conf may name them).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from ajet.commands.export import find_model_folder, select_checkpoint
from ajet.commands.recorded_run import load_recorded_settings, require_own_code
from ajet.engine.adapters import Adapters
from ajet.engine.contract import DrawKey, Sampling, TokenEngine, TokenRequest
from ajet.record.checkpoint import NAME, STATE
from ajet.record.checkpoints import checkpoints_of
from ajet.record.console import console, counted, printable
from ajet.record.find_run import require_run
from ajet.schema.commands import format_command
from ajet.schema.episode import Verdict
from ajet.schema.errors import UserError
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge import BaseJudge
from ajet.tokens import Renderer

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.task_reader import TaskSplit


class ChatJudge(BaseJudge):
    """A judge that gives no score, for questions without a reference answer."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Verdict:
        """Return no score, since the line has no reference answer."""
        return Verdict(None, None, "no score: a chat is not judged")


def chat(
    run: str,
    root: Path,
    prompt: str | None = None,
    *,
    system: str | None = None,
    through_agent: bool = False,
    conf: Path | None = None,
    adapter: str | None = None,
) -> int:
    """Answer `prompt` once, or read lines until an empty line or end of file, and return the exit code 0.

    Args:
        run: A run, or the folder of one of its checkpoints.
        root: Folder of all runs.
        prompt: The only question, or None to read questions from the terminal.
        system: System prompt for the model, or None.
        through_agent: True to ask the run's agent instead of the model.
        conf: The YAML with agent and settings. None: the record's settings.
        adapter: Name of the answering adapter, if there are several.

    Raises:
        UserError: The run cannot be used.
    """
    from ajet.config import load_experiment
    from ajet.config.dotenv import load_project_dotenv

    expected = "a run folder with a resolved.yaml and checkpoints/"
    run_path, step = Path(run).expanduser(), None
    if NAME.fullmatch(run_path.name) and (run_path / STATE).is_file() and run_path.parent.name == "checkpoints":
        run, step = str(run_path.absolute().parent.parent), int(run_path.name.removeprefix("step-"))
    folder = require_run(run, root, holding="resolved.yaml", expected=expected)
    checkpoints = checkpoints_of(folder)
    if step is None:
        checkpoints.require_whole()
        checkpoint = checkpoints.best() or checkpoints.latest()
    else:
        checkpoint = select_checkpoint(checkpoints, step)
    if checkpoint is None:
        raise UserError(f"The run {run} has saved no checkpoint yet.", where=str(folder / "checkpoints"))
    model_folder = find_model_folder(folder, checkpoint)
    console.print(
        Text(f"{model_folder}{' · an empty line ends the chat' if prompt is None else ''}", "dim"), soft_wrap=True
    )
    if not (model_folder / "config.json").is_file():
        raise UserError(
            "This checkpoint contains no model.", where=str(model_folder), expected="a folder with a config.json"
        )
    load_project_dotenv(record=folder)
    if conf is None:
        experiment = load_recorded_settings(folder)
        if through_agent:
            require_own_code(
                experiment, folder, otherwise=format_command("chat", run, "--agent", "--conf", "FILE.yaml")
            )
    else:
        experiment = load_experiment(conf, backbone="debug")
    experiment.ajet.model.path = str(model_folder.absolute())
    if through_agent:
        _chat_with_agent(experiment, prompt)
    else:
        _require_adapter(Adapters.from_folder(model_folder), adapter, run)
        _chat_with_model(experiment, prompt, system, adapter)
    return 0


def _require_adapter(adapters: Adapters, adapter: str | None, run: str) -> None:
    """Raise UserError if the model has no adapter of this name, or if it has several and none is named."""
    if adapter in (adapters.names or (None,)):
        return
    adapter_list = ", ".join(adapters.names)
    raise UserError(
        f"The run {run} has no adapter {adapter}."
        if adapter
        else f"The run {run} has several adapters, each for its own agents; choose one of them.",
        where="--adapter",
        expected=f"one of {adapter_list}" if adapters else "no adapter: the run did not train several adapters",
        do=format_command("chat", run, "--adapter", adapters.names[0]) if adapters else "",
    )


def _chat_with_model(experiment: Experiment, prompt: str | None, system: str | None, adapter: str | None) -> None:
    """Answer each line of the user by the model, in one conversation."""
    from ajet.engine.drivers import open_sampler
    from ajet.rollout.components import make_renderer

    settings = experiment.ajet
    engine, tokenizer = open_sampler(settings)
    try:
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        renderer = make_renderer(settings, tokenizer)
        for line in _read_lines(prompt):
            messages.append({"role": "user", "content": line})
            asyncio.run(_answer_line(engine, renderer, messages, settings, adapter))
    finally:
        engine.close()


def _chat_with_agent(experiment: Experiment, prompt: str | None) -> None:
    """Run one episode of the run's agent per line of the user.

    The task is the first held-out task (or else training task) with the line as query, so the workflow finds its other
    fields.
    """
    from ajet.commands.episode_panel import show_episode
    from ajet.rollout.components import choose_sampling
    from ajet.task_reader import open_reader
    from ajet.train.parts import assemble

    unjudged = f"{__name__}->{ChatJudge.__name__}"
    experiment.ajet.task_judge = experiment.ajet.task_judge.replace_judges(judge_protocol=unjudged)
    split: TaskSplit = "validation" if open_reader(experiment).has("validation") else "train"
    with assemble(experiment, run_id="chat", split=split) as parts:
        template_task = parts.reader.tasks(split)[0]
        console.print(
            Text(f"the question is yours; all other fields come from the task {template_task.task_id!r}", "dim"),
            soft_wrap=True,
        )
        for order, line in enumerate(_read_lines(prompt)):
            task = template_task.model_copy(update={"main_query": line, "task_id": f"chat-{order + 1}"})
            sampling = choose_sampling(experiment.ajet, "validation")
            for group in parts.rollout.play([(order, task)], step=0, split="debug", repeats=1, sampling=sampling):
                for episode in group.episodes:
                    show_episode(episode)


def _read_lines(prompt: str | None) -> Iterator[str]:
    """Yield the prompt, or without one each line that the user types, until an empty line or the end of input."""
    if prompt is not None:
        yield prompt
        return
    try:
        while line := console.input("[bold cyan]you:[/] ").strip():
            yield line
    except EOFError:
        console.print()


async def _answer_line(
    engine: TokenEngine,
    renderer: Renderer,
    messages: list[dict[str, Any]],
    settings: AjetConfig,
    adapter: str | None,
) -> None:
    """Print one reply and append the reply to `messages`."""
    rendered = renderer.render(messages)
    free_tokens = settings.rollout.max_model_len - len(rendered.ids)
    sampling = Sampling(
        max_tokens=max(1, min(settings.rollout.max_response_length_in_one_turn, free_tokens)),
        temperature=0.0,
        stop_ids=renderer.end_ids,
    )
    ids: list[int] = []
    request = TokenRequest(rendered.ids, sampling, DrawKey(settings.seed, 0, 0, len(messages)), adapter=adapter)
    finish = None
    async for chunk in engine.generate(request):
        ids += chunk.ids
        finish = chunk.finish
    reply = renderer.parse(np.asarray(ids, np.int32))
    messages.append(reply)
    console.print(Text.assemble(("model: ", "bold green"), printable(reply.get("content") or "")), soft_wrap=True)
    if finish == "length":
        limit = "max_model_len" if len(ids) >= free_tokens else "max_response_length_in_one_turn"
        console.print(f"✂ the reply was cut after {counted(len(ids), 'token')}, by rollout.{limit}", style="yellow")

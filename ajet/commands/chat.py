"""`ajet chat RUN`: talk to the model a run has tuned, or to the run's agent with that model in it.

Invariant: the weights are those of the run's best checkpoint (the latest without a validated one), sampled by the
same engine and rendered by the same renderer as in training. The agent is the run's own workflow, its tools included,
played as in training but for the judge: what a person asks has no reference to be judged by. The record gives weights
and settings, as data: code comes from the person's own project, and addresses and the environment from no record (a
YAML that is named with --conf may say what a record may not).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from ajet.commands.export import checkpoint_of, model_folder
from ajet.commands.recorded_agent import recorded_settings, require_own
from ajet.engine.adapters import Adapters
from ajet.engine.contract import DrawKey, Sampling, TokenEngine, TokenRequest
from ajet.record.checkpoint import NAME, STATE, Checkpoint
from ajet.record.checkpoints import checkpoints_of
from ajet.record.console import console, counted
from ajet.record.find_run import known_run
from ajet.schema.commands import command
from ajet.schema.episode import Verdict
from ajet.schema.errors import UserError
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge import BaseJudge
from ajet.tokens import Renderer

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.task_reader import TaskSplit


class Unjudged(BaseJudge):
    """Stands in for the run's judge."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Verdict:
        """No score, since the line has no answer to hold it to."""
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
    """Answer `prompt` once, or read lines until an empty one or end of file. `run`: a run, or a checkpoint's folder in
    it. `conf`: the YAML that agent and settings
    are taken from, rather than from the record. `adapter`: which of several answers. Exit code 0. Raises UserError."""
    from ajet.config import load_experiment
    from ajet.config.dotenv import load_project_dotenv

    expected = "a run directory with a resolved.yaml and checkpoints/"
    place = Path(run).expanduser()
    if NAME.fullmatch(place.name) and (place / STATE).is_file() and place.parent.name == "checkpoints":
        run, step = str(place.absolute().parent.parent), int(place.name.removeprefix("step-"))
        folder = known_run(run, root, holding="resolved.yaml", expected=expected)
        checkpoint: Checkpoint | None = checkpoint_of(checkpoints_of(folder), step)
    else:
        folder = known_run(run, root, holding="resolved.yaml", expected=expected)
        checkpoints = checkpoints_of(folder)
        checkpoints.require_whole()
        checkpoint = checkpoints.best() or checkpoints.latest()
    if checkpoint is None:
        raise UserError(f"{run} has saved no checkpoint yet.", where=str(folder / "checkpoints"))
    model = model_folder(folder, checkpoint)
    console.print(Text(f"{model}{' · an empty line ends the chat' if prompt is None else ''}", "dim"), soft_wrap=True)
    if not (model / "config.json").is_file():
        raise UserError("This checkpoint holds no model.", where=str(model), expected="a folder with a config.json")
    load_project_dotenv(record=folder)
    if conf is None:
        experiment = recorded_settings(folder)
        if through_agent:
            require_own(experiment, folder, otherwise=command("chat", run, "--agent", "--conf", "FILE.yaml"))
    else:
        experiment = load_experiment(conf, backbone="debug")
    experiment.ajet.model.path = str(model.absolute())
    if through_agent:
        _with_agent(experiment, prompt)
    else:
        _require_adapter(Adapters.saved(model), adapter, run)
        _with_model(experiment, prompt, system, adapter)
    return 0


def _require_adapter(known: Adapters, adapter: str | None, run: str) -> None:
    if adapter in (known.names or (None,)):
        return
    listed = ", ".join(known.names)
    raise UserError(
        f"{run} has no adapter {adapter}." if adapter else f"{run} has several adapters, each for agents of its own.",
        where="--adapter",
        expected=f"one of {listed}" if known else "nothing: the run has trained no several adapters",
        do=command("chat", run, "--adapter", known.names[0]) if known else "",
    )


def _with_model(experiment: Experiment, prompt: str | None, system: str | None, adapter: str | None) -> None:
    from ajet.engine.sampler import open_sampler
    from ajet.rollout.components import renderer_of

    settings = experiment.ajet
    engine, tokenizer = open_sampler(settings)
    try:
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        renderer = renderer_of(settings, tokenizer)
        for line in _lines(prompt):
            asyncio.run(_answer(engine, renderer, messages, line, settings, adapter))
    finally:
        engine.close()


def _with_agent(experiment: Experiment, prompt: str | None) -> None:
    """Each line is an episode of its own: the first held-out task (else training task) with the line for its query, so
    that a workflow finds the other fields that it reads."""
    from ajet.commands.episode_panel import show_episode
    from ajet.rollout.components import split_sampling
    from ajet.task_reader import open_reader
    from ajet.train.parts import assemble

    unjudged = f"{__name__}->{Unjudged.__name__}"
    experiment.ajet.task_judge = experiment.ajet.task_judge.deciding(judge_protocol=unjudged)
    split: TaskSplit = "validation" if open_reader(experiment).has("validation") else "train"
    with assemble(experiment, run_id="chat", split=split) as parts:
        stage = parts.reader.tasks(split)[0]
        console.print(Text(f"everything but the question is of the task {stage.task_id!r}", "dim"), soft_wrap=True)
        for order, line in enumerate(_lines(prompt)):
            task = stage.model_copy(update={"main_query": line, "task_id": f"chat-{order + 1}"})
            sampling = split_sampling(experiment.ajet, "validation")
            for group in parts.rollout.play([(order, task)], step=0, split="debug", repeats=1, sampling=sampling):
                for episode in group.episodes:
                    show_episode(episode)


def _lines(prompt: str | None) -> Iterator[str]:
    if prompt is not None:
        yield prompt
        return
    while line := _read_line():
        yield line


def _read_line() -> str:
    try:
        return console.input("[bold cyan]you:[/] ").strip()
    except EOFError:
        console.print()
        return ""


async def _answer(
    engine: TokenEngine,
    renderer: Renderer,
    messages: list[dict[str, Any]],
    line: str,
    settings: Any,
    adapter: str | None = None,
) -> None:
    """Print one reply and append both turns to `messages`."""
    from ajet.record.console import printable

    messages.append({"role": "user", "content": line})
    rendered = renderer.render(messages)
    room = settings.rollout.max_model_len - len(rendered.ids)
    sampling = Sampling(
        max_tokens=max(1, min(settings.rollout.max_response_length_in_one_turn, room)),
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
        limit = "max_model_len" if len(ids) >= room else "max_response_length_in_one_turn"
        console.print(f"✂ the reply was cut after {counted(len(ids), 'token')}, by rollout.{limit}", style="yellow")

"""`ajet export --check`: compares recorded calls with the exported folder, loaded without ajet's settings.

Invariant: the folder is compared with prompts, ids and log-probabilities recorded while the run sampled with the same
weights, not with another computation from the same files. Parts not comparable are named. Without any comparable part
the check fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.commands.export import select_checkpoint
from ajet.gateway.recorder import common_start
from ajet.record.checkpoints import checkpoints_of
from ajet.record.console import console, counted, print_line
from ajet.record.episodes import EpisodeFiles
from ajet.record.evaluations import evaluations_of
from ajet.record.progress import Progress
from ajet.schema.call import Call, Ids, prompt_ids
from ajet.schema.commands import format_command
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.engine.stock_model import StockModel
    from ajet.record.checkpoint import Checkpoint
    from ajet.schema.episode import Episode

TOLERANCE = {"float32": 0.01, "bfloat16": 1.5}
"""Largest gap of one token by rounding, in nats, as in `ajet prove`."""
MEAN_TOLERANCE = {"float32": 0.001, "bfloat16": 0.03}
"""Largest mean gap over all tokens, in nats: rounding averages out, another model does not."""


@dataclass(slots=True)
class ExportCheck:
    """The result of comparing an exported folder with recorded calls: counts, and differences in words."""

    source: str
    """Name of the record compared with the folder."""
    dtype: str = "float32"
    """Coarser of the folder's number type and the type of the sampling."""
    calls: int = 0
    prompts: int = 0
    other_prompts: list[str] = field(default_factory=list)
    """Differences of the folder's chat template, in words."""
    gaps: list[float] = field(default_factory=list)
    """Gap of each sampled token in nats."""
    replies: int = 0
    """Number of compared greedy replies."""
    other_replies: list[str] = field(default_factory=list)
    endless: int = 0
    """Number of replies that ended where the folder's generation settings would continue."""
    tolerance: float = 0.0
    engine: str = "transformers"
    engine_gaps: list[float] = field(default_factory=list)
    engine_replies: int = 0
    other_engine_replies: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Return why the check failed, or [] if the exported folder behaves as the run's model."""
        allowed_mean = MEAN_TOLERANCE[self.dtype]
        problems = [*self.other_prompts[:1], *self.other_replies[:1], *self.other_engine_replies[:1]]
        for engine, gaps in (("transformers", self.gaps), (self.engine, self.engine_gaps)):
            if gaps and max(gaps) > self.tolerance:
                problems.append(
                    f"{engine}: the log-probability of a token differs by {max(gaps):.2g} nats, the limit is "
                    f"{self.tolerance:g}"
                )
            if gaps and np.mean(gaps) > allowed_mean:
                problems.append(
                    f"{engine}: log-probabilities differ by {np.mean(gaps):.2g} nats on average, the limit is "
                    f"{allowed_mean:g}"
                )
        if self.endless:
            problems.append(
                f"{counted(self.endless, 'reply')} ended at a token that generation_config.json does not list"
            )
        return problems


def check_export(
    exported: Path, run: Path, step: int, *, at_most: int = 16, tolerance: float | None = None, engine: str = ""
) -> ExportCheck:
    """Compare an exported folder with the samples that the run took from the same weights.

    Args:
        exported: The folder.
        run: The run's folder.
        step: Step of the exported checkpoint.
        at_most: Number of calls to compare.
        tolerance: Largest gap of one token in nats. None: by number type.
        engine: "vllm" to compare vLLM's replies, too.

    Raises:
        UserError: No call was recorded with the weights, or the folder cannot be loaded.
    """
    from ajet.backbone import saved_dtype
    from ajet.config import load_recorded_experiment
    from ajet.engine.stock_model import StockModel

    checkpoint = select_checkpoint(checkpoints_of(run), step)
    source, record_folder, calls = _find_recorded_calls(run, checkpoint, exported, at_most)
    settings = load_recorded_experiment(record_folder / "resolved.yaml").ajet
    try:
        stock_model = StockModel(exported)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"transformers cannot load the folder: {str(error)[:400]}", where=str(exported)) from error
    if record_folder != run:
        sampling_dtype = "float32" if settings.model.dtype == "float32" else "bfloat16"
    else:
        sampling_dtype = (
            "bfloat16" if "verl" in checkpoint.state else saved_dtype(checkpoint.path)
        )  # verl's servers sample in it
    coarser_dtype = "float32" if (stock_model.dtype, sampling_dtype) == ("float32", "float32") else "bfloat16"
    check = ExportCheck(
        source, dtype=coarser_dtype, tolerance=TOLERANCE[coarser_dtype] if tolerance is None else tolerance
    )
    with Progress() as bars, bars.bar("check", len(calls), "calls") as bar:
        for episode, call in calls:
            _compare_call(check, stock_model, episode, call, settings.model.chat_template_kwargs)
            bar.advance()
    if engine == "vllm":
        _check_vllm(check, stock_model, exported, settings, calls)
    return check


def print_check(check: ExportCheck) -> None:
    """Print a line for each compared part, each problem, and whether the folder passes."""
    gaps = check.gaps
    console.print(
        f"Compared with {check.source}: {counted(check.calls, 'call')}, {counted(len(gaps), 'sampled token')}."
    )
    _print_row("template", f"{check.prompts - len(check.other_prompts)} of {check.prompts} prompts equal")
    if gaps:
        _print_row("weights", f"largest difference {max(gaps):.2g} nats, mean {np.mean(gaps):.2g} ({check.dtype})")
    reply_text = f"{check.replies - len(check.other_replies)} of {check.replies} greedy replies equal"
    _print_row("replies", reply_text if check.replies else "not compared: no reply was sampled greedily")
    _print_row(
        "ends",
        "as the folder's generation settings say" if not check.endless else f"{check.endless} replies do not end",
    )
    if check.engine_gaps:
        equal_replies = check.engine_replies - len(check.other_engine_replies)
        _print_row(check.engine, (
            f"{equal_replies} of {check.engine_replies} greedy replies equal those of transformers, largest difference "
            f"{max(check.engine_gaps):.2g} nats"
            ))  # fmt: skip
    for problem in check.problems:
        print_line(f"✗ {problem}", style="red")
    allowed_text = f"{check.tolerance:g} nats per token, {MEAN_TOLERANCE[check.dtype]:g} on average"
    if not check.problems:
        print_line(f"The exported model behaves as the run's model (allowed difference: {allowed_text}).")


def _print_row(name: str, text: str) -> None:
    """Print the result of one compared part below its name."""
    print_line(f"  {name:<9} {text}")


def _find_recorded_calls(
    run: Path, checkpoint: Checkpoint, exported: Path, at_most: int
) -> tuple[str, Path, list[tuple[Episode, Call]]]:
    """Return recorded calls that were sampled from the checkpoint's weights.

    They come from the validation after the step, else from the next training step, else from an evaluation of the
    checkpoint.

    Args:
        exported: The exported folder, whose evaluations count too.
        at_most: Number of calls.

    Returns:
        The name of the source for messages, the folder of its record, and (episode, call) pairs.

    Raises:
        UserError: No such call was recorded.
    """
    step, files = checkpoint.step, EpisodeFiles(run / "episodes")
    for play_step, split in ((step, "validation"), (step + 1, "train")):
        calls = list(islice(_first_calls(files.read(play_step, split), step), at_most))
        if calls:
            source = (
                f"the validation after step {play_step}"
                if split == "validation"
                else f"the attempts of step {play_step}"
            )
            return source, run, calls
    for record in reversed(evaluations_of(run, checkpoint, exported)):
        files_there = EpisodeFiles(record.folder / "episodes")
        for play_step in (step, 0):  # 0 if the model was named by its folder
            calls = list(islice(_first_calls(files_there.read(play_step, "validation"), None), at_most))
            if calls:
                return f"the evaluation {'/'.join(record.folder.parts[-3:])}", record.folder, calls
    raise UserError(
        f"The run recorded no replies of the weights of step {step}, so the folder cannot be checked.",
        where=str(files.folder),
        expected="a recorded validation or evaluation of the weights of that step",
        do=f"evaluate it: {format_command('eval', 'FILE.yaml', '--model', checkpoint.path)}; or check another --step",
    )


def _first_calls(episodes: Sequence[Episode], version: int | None) -> Iterator[tuple[Episode, Call]]:
    """Yield each episode's first trained call without images that the given policy version sampled alone.

    Args:
        version: The policy version. None: any.
    """
    for episode in episodes:
        for call in episode.calls:
            is_of_version = version is None or all(run.low == run.high == version for run in call.versions)
            has_no_images = not any(isinstance(message.get("content"), list) for message in episode.messages)
            if is_of_version and has_no_images and call.trained and call.parent is None and len(call.response_ids):
                yield episode, call
                break


def _compare_call(
    check: ExportCheck, stock_model: StockModel, episode: Episode, call: Call, options: dict[str, Any]
) -> None:
    """Compare a recorded call with transformers' own model: chat template, log-probabilities and greedy reply.

    Args:
        check: Collects the result.
        stock_model: The exported folder, as transformers loads it.
        options: Keyword arguments of the chat template.
    """
    prompt, reply = prompt_ids(episode.calls, call.index), call.response_ids
    name = f"task {episode.task.task_id}"
    messages = [episode.messages[index] for index in call.messages]
    tools = episode.tools[call.tools] if call.tools is not None else None
    check.calls += 1
    if call.terms.raw_prompt is None:
        check.prompts += 1
        rendered = stock_model.prompt(messages, tools, options, episode.day)
        if not np.array_equal(rendered, prompt):
            position = common_start(rendered, prompt)
            was, now = (
                stock_model.tokenizer.decode(ids[position : position + 12].tolist()) for ids in (prompt, rendered)
            )
            check.other_prompts.append(
                f"{name}: the folder's chat template differs at token {position}: {now!r} instead of {was!r}"
                + (
                    " (ajet describes tools in the prompt of a model whose template does not support tools)"
                    if tools
                    else ""
                )
            )
    reading = stock_model.read(prompt, reply, call.terms.adapter)
    # `logprobs_unit` are at temperature 1, like the stock model's; `logprobs` are at the call's own temperature.
    check.gaps += np.abs(reading.logprobs - call.logprobs_unit).tolist()
    if call.finish == "stop" and int(reply[-1]) not in stock_model.ends:
        check.endless += 1
    if call.temperature == 0:
        check.replies += 1
        if (
            difference := _find_other_token(reading.greedy, reading.margins, reply, check.tolerance, stock_model)
        ) is not None:
            check.other_replies.append(f"{name}: {difference}")


def _find_other_token(greedy: Ids, margins: Any, reply: Ids, tolerance: float, stock_model: StockModel) -> str | None:
    """Return where the model clearly prefers another token than the reply has, in words, or None.

    Args:
        greedy: [R] the model's preferred tokens.
        margins: [R] nats by which the preferred token is likelier than the reply's.
        reply: [R] the reply's tokens.
        tolerance: Margin up to which the difference may be rounding.
    """
    for index in np.flatnonzero(greedy != reply):
        if margins[index] > tolerance:
            now, was = (stock_model.tokenizer.decode([int(ids[index])]) for ids in (greedy, reply))
            return (
                f"the greedy reply differs at token {index}: {now!r} instead of {was!r}, which is {margins[index]:.2g} "
                "nats likelier"
            )
    return None


def _check_vllm(
    check: ExportCheck, stock_model: StockModel, exported: Path, settings: Any, calls: Sequence[tuple[Episode, Call]]
) -> None:
    """Let vLLM answer the same prompts greedily, and compare each token of its replies with transformers."""
    from ajet.engine.contract import DrawKey, Sampling, TokenRequest
    from ajet.engine.drivers import open_sampler

    settings.model.path = str(exported)
    settings.rollout.engine = "vllm"
    settings.rollout.vllm.base_url = None
    engine, _ = open_sampler(settings)
    check.engine = "vllm"

    async def generate_replies() -> list[tuple[Ids, Ids, Any]]:
        """Return (prompt, reply, log-probabilities) of each call, generated in parallel."""

        async def generate_one(episode: Episode, call: Call, number: int) -> tuple[Ids, Ids, Any]:
            """Return (prompt, greedy reply, log-probabilities at temperature 1) for the prompt of a recorded call."""
            prompt = prompt_ids(episode.calls, call.index)
            sampling = Sampling(len(call.response_ids), temperature=0.0, stop_ids=tuple(sorted(stock_model.ends)))
            ids: list[int] = []
            logprobs: list[float] = []
            adapter = call.terms.adapter
            request = TokenRequest(prompt, sampling, DrawKey(0, number, 0, 0), adapter=adapter)
            async for chunk in engine.generate(request):
                ids += chunk.ids
                logprobs += chunk.logprobs_unit
            return prompt, np.asarray(ids, np.int32), np.asarray(logprobs, np.float32)

        return list(
            await asyncio.gather(*(generate_one(*episode_call, number) for number, episode_call in enumerate(calls)))
        )

    try:
        for (episode, call), (prompt, ids, logprobs) in zip(calls, asyncio.run(generate_replies()), strict=True):
            reading = stock_model.read(prompt, ids, call.terms.adapter)
            check.engine_gaps += np.abs(reading.logprobs - logprobs).tolist()
            check.engine_replies += 1
            if (
                difference := _find_other_token(reading.greedy, reading.margins, ids, check.tolerance, stock_model)
            ) is not None:
                check.other_engine_replies.append(f"vllm, task {episode.task.task_id}: {difference}")
    finally:
        engine.close()

"""`ajet optimize-prompt`: GEPA searches a better prompt on training tasks; `ajet eval`'s code measures it held out.

Invariants: the training tasks are split once, by the experiment's seed: reflection sees one part, the other part
selects the prompt. Held-out tasks are played only at the end, by the starting prompt and by the selected one, into
records of `ajet eval`. No other command reads prompts from the record.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.commands.evaluation.models import choose_models
from ajet.commands.evaluation.play import EvaluationOptions, EvaluationResult, evaluate_models, prepare_experiment
from ajet.commands.launch import close_with_outcome, warn_of_unconfined
from ajet.commands.services import enter_run_hooks, require_services
from ajet.record import RunDirectory
from ajet.record.console import counted, print_line
from ajet.record.files import append_lines, write_atomically
from ajet.record.plain_json import dumps
from ajet.schema.errors import JudgeFailure, UserError, require_packages
from ajet.task_judge.other_model import make_model_caller
from ajet.task_judge.registry import prepare_judge
from ajet.train.interrupts import Interrupts
from ajet.train.parts import assemble, pins_of
from ajet_gepa.prompt_key import PromptKey

if TYPE_CHECKING:
    from gepa.core.result import GEPAResult
    from gepa.core.state import GEPAState

    from ajet.config import Experiment
    from ajet_gepa.adapter import PlacedTask

BEST, SUMMARY, REFLECTIONS = "best_prompt.txt", "prompts.json", "reflections.jsonl"
LONGEST_REPLY = 16384
"""Tokens of a reflection, with the thoughts of a reasoning model."""
FEWEST_TASKS = 4
"""Minimum number of training tasks: some for reflection and some for selection."""


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """Flags of `ajet optimize-prompt`."""

    key: str
    """Key of the YAML with the prompt."""
    reflector: str
    """Name of the reflecting model at the server of the environment."""
    budget: int = 500
    """Maximum number of attempts at training tasks, up to one evaluation more."""
    select_on: int = 32
    """Number of training tasks that select the prompt."""
    minibatch: int = 4
    """Number of training tasks of a reflection."""
    perfect: float = 1.0
    """Reward at which an attempt cannot be improved."""
    evaluation: EvaluationOptions = EvaluationOptions()
    """Sampling parameters of all attempts, and the number of held-out tasks."""


@dataclass(frozen=True, slots=True)
class OptimizedPrompt:
    """The result of an optimization."""

    folder: Path
    """The record: candidates, reflections, episodes."""
    start: str
    best: str
    held_out: EvaluationResult
    """Held-out scores of the starting prompt, and of the best one if it differs."""


def optimize_prompt(experiment: Experiment, options: PromptOptions) -> OptimizedPrompt:
    """Search a better prompt, then evaluate both prompts on the held-out tasks. Raises UserError."""
    require_packages("gepa", extra="gepa", needed_for="ajet optimize-prompt")
    key = PromptKey(options.key)
    start = key.read_text(experiment)
    prepared = prepare_experiment(experiment, options.evaluation)
    with Interrupts().install(), enter_run_hooks(prepared, prepared.root / prepared.name / "prompt"):
        require_services(prepared)
        prepare_judge(prepared)
        run = RunDirectory.open(prepared, root=prepared.root, kind="prompt")
        warn_of_unconfined(prepared)
        with close_with_outcome(run):
            result = _search_prompt(prepared, options, key, run)
            best = str(result.candidates[result.best_idx]["prompt"])
            _write_result(run, options, start, best, result)
    return OptimizedPrompt(run.path, start, best, _evaluate_prompts(experiment, options, key, start, best))


def split_tasks(tasks: Sequence[PlacedTask], select_on: int, seed: int) -> tuple[list[PlacedTask], list[PlacedTask]]:
    """Split the tasks at random by the seed.

    Args:
        select_on: number of tasks for selection, at most half of all.

    Returns:
        (tasks for reflection, tasks for selection).

    Raises:
        UserError: there are too few tasks.
    """
    if len(tasks) < FEWEST_TASKS:
        raise UserError(
            f"There are {counted(len(tasks), 'training task')}; reflection and selection need {FEWEST_TASKS}.",
            where="ajet.task_reader",
            expected="more training tasks",
        )
    shuffled = random.Random(seed).sample(list(tasks), len(tasks))
    count = min(select_on, len(shuffled) // 2)
    return shuffled[count:], shuffled[:count]


def _search_prompt(
    experiment: Experiment, options: PromptOptions, key: PromptKey, run: RunDirectory
) -> GEPAResult[Any, Any]:
    """Run GEPA's search on the training tasks, and return its candidates with their scores.

    Raises:
        UserError: the budget is too small, a task cannot be scored, or the reflecting model fails before it wrote a
            prompt.
    """
    import gepa

    from ajet_gepa.adapter import COMPONENT, PromptAdapter

    with assemble(experiment, run_id=run.run_id, split="train", pins=pins_of(run)) as parts:
        reflection, selection = split_tasks(
            list(enumerate(parts.tasks("train"))), options.select_on, experiment.ajet.seed
        )
        smallest_budget = (len(selection) + 2 * options.minibatch) * experiment.ajet.validation_repeats
        if options.budget < smallest_budget:
            raise UserError(
                f"A budget of {options.budget} attempts is too small for a first reflection.",
                where="--budget",
                expected=f"at least {smallest_budget}: {len(selection)} selection tasks, and two minibatches",
                do="raise --budget, or lower --select-on",
            )
        reflector = _Reflector(options.reflector, run)

        def should_stop(gepa_state: GEPAState) -> bool:
            """Stop if the reflecting model failed, or if a prompt reaches the perfect reward on the selection tasks."""
            return reflector.problem is not None or max(gepa_state.program_full_scores_val_set) >= options.perfect

        result: GEPAResult[Any, Any] = gepa.optimize(
            seed_candidate={COMPONENT: key.read_text(experiment)},
            trainset=reflection,
            valset=selection,
            adapter=PromptAdapter(parts, run, key, selection),
            reflection_lm=reflector,
            reflection_minibatch_size=min(options.minibatch, len(reflection)),
            perfect_score=options.perfect,
            max_metric_calls=options.budget,
            stop_callbacks=should_stop,
            seed=experiment.ajet.seed,
            logger=_GepaLogger(),
        )
    if reflector.problem is not None:
        if len(result.candidates) == 1:
            raise reflector.problem
        logger.warning("the search ended early, with the best prompt so far. {}", reflector.problem.what)
    return result


class _GepaLogger:
    """Writes GEPA's own messages to the log."""

    def log(self, message: str) -> None:
        """Log a message at the level debug."""
        logger.debug("{}", message)


class _Reflector:
    """Calls the reflecting model, and records each request with its reply.

    GEPA continues after an error of the model, so the first error is stored in `problem` and ends the search.
    """

    def __init__(self, model: str, run: RunDirectory) -> None:
        self._model, self._run = model, run
        self._call = make_model_caller(model, LONGEST_REPLY)
        self.problem: UserError | None = None

    def __call__(self, prompt: str | list[dict[str, Any]]) -> str:
        """Send a request to the reflecting model, record it, and return the reply.

        Raises:
            UserError: the model fails now, or has failed before.
        """
        if self.problem is not None:
            raise self.problem
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            reply = self._call(messages, {"temperature": 1.0})["content"]
        except JudgeFailure as error:
            self.problem = UserError(
                f"The reflecting model failed: {error}",
                where=f"--reflect {self._model}",
                expected="a model at OPENAI_BASE_URL, with its key in OPENAI_API_KEY",
            )
            raise self.problem from error
        line = dumps({"model": self._model, "messages": messages, "reply": reply})
        append_lines(self._run.path / REFLECTIONS, [self._run.redact(line)])
        return reply


def _write_result(
    run: RunDirectory, options: PromptOptions, start: str, best: str, result: GEPAResult[Any, Any]
) -> None:
    """Write the summary and the best prompt into the run's folder, and print the scores of start and best prompt."""
    candidates = [
        {"prompt": candidate["prompt"], "score": score, "parents": parents}
        for candidate, score, parents in zip(
            result.candidates, result.val_aggregate_scores, result.parents, strict=True
        )
    ]
    summary = {
        "key": options.key, "reflector": options.reflector, "start": start, "best": best,
        "attempts": result.total_metric_calls, "candidates": candidates,
    }  # fmt: skip
    write_atomically(run.path / SUMMARY, run.redact(dumps(summary)) + "\n")
    write_atomically(run.path / BEST, run.redact(best))
    scores = result.val_aggregate_scores
    print_line(
        f"{counted(len(candidates), 'prompt')} after {counted(result.total_metric_calls or 0, 'attempt')}; reward on "
        f"the selection tasks: start {scores[0]:.3g}, best {scores[result.best_idx]:.3g}"
    )


def _evaluate_prompts(
    experiment: Experiment, options: PromptOptions, key: PromptKey, start: str, best: str
) -> EvaluationResult:
    """Evaluate the prompts on the held-out tasks, as if they were two models; an unchanged prompt only once."""
    results = []
    for label, text in (("starting prompt", start), ("best prompt", best))[: 1 if best == start else 2]:
        with_prompt = key.set_text(experiment, text)
        models = [replace(model, label=label) for model in choose_models(["base"], with_prompt, None)]
        results.append(evaluate_models(with_prompt, models, options.evaluation))
    evaluated = tuple(model_scores for result in results for model_scores in result.evaluated)
    # The lowest reward stands for failed attempts, so both prompts use the same one.
    lowest = min(model_scores.scores.lowest for model_scores in evaluated)
    same_scale = tuple(
        replace(model_scores, scores=replace(model_scores.scores, lowest=lowest)) for model_scores in evaluated
    )
    return replace(results[0], evaluated=same_scale)

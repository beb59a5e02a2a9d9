"""`ajet prove`: recorded episodes derived a second time, token by token.

Invariant: what is printed as checked was checked: ids by rendering, extending, parsing, tracking and packing again;
log-probabilities by the trainer's own forward pass at the weights that sampled them, losses at those that an update
began with. Where those weights are gone, it says so step by step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from ajet.config.record_file import open_record_file
from ajet.record import Checkpoints
from ajet.record.checkpoints import checkpoints_folder
from ajet.record.episodes import recorded_of
from ajet.record.files import read_rows
from ajet.record.progress import Progress
from ajet.rollout.components import choose_sampling
from ajet.schema.errors import UserError
from ajet_proof.auditing.altered import told_of
from ajet_proof.auditing.chain_state import read_chain
from ajet_proof.recorded.recompute import WRITTEN, Recomputation, versions_of
from ajet_proof.recorded.steps import REMOVED, HeldSteps, WrongStep
from ajet_proof.recorded.target import CONFIG, Target, find_target, step_of
from ajet_proof.tokens.proof import Proof, WrongToken, prove
from ajet_proof.tokens.proof_gaps import Spread

if TYPE_CHECKING:
    from ajet.backbone.contract import RecordedScorer
    from ajet.config import AjetConfig, Experiment
    from ajet.schema.batch import TrainingBatch
    from ajet.schema.call import Floats
    from ajet.schema.episode import Episode, Outcome, Split

TOLERANCE = {"float32": 0.01, "bfloat16": 1.5}
"""Nats by which engine and trainer may differ on an improbable token: what rounding explains, and no more. Measured on
20 steps of the quickstart: 3e-5 in float32, 1.2 in bfloat16."""
Weights = dict[int, tuple[Path | None, str]]
"""Policy version -> (checkpoint, how a person calls it); None is the model that the run began with."""
OUTSIDE = (
    "what judges and other models answered, and tools whose uses were not recorded",
    "what workflows printed and noted, names of agents within a conversation, times",
    "whether the recorded versions are those that sampled, where weights differ by less than rounding",
)
"""What nothing here can contradict."""


@dataclass(slots=True)
class PlayedFile:
    """One file of episodes."""

    file: Path
    step: int
    split: Split
    episodes: int = 0
    sampled: Counter[int] = field(default_factory=Counter)
    """Sampled tokens by the policy version that sampled them; -1 where an engine resumed across an update, `WRITTEN`
    where nobody of this run did."""
    recomputed: int = 0


@dataclass(frozen=True, slots=True)
class StepSpread:
    """The gaps of what one policy version sampled in one episode file."""

    step: int
    split: Split
    version: int
    which: str
    """At temperature 1, or as sampled."""
    spread: Spread


@dataclass(slots=True)
class Report:
    """The findings of `ajet prove`."""

    target: Target
    proof: Proof = field(default_factory=Proof)
    plays: list[PlayedFile] = field(default_factory=list)
    weights: dict[int, str] = field(default_factory=dict)
    """Version -> where the weights came from that its tokens were recomputed with."""
    tolerance: float | None = None
    computed_in: str = ""
    """Number format and device of the recomputation; empty without one."""
    why_not: str = ""
    """Why nothing was recomputed, if so."""
    wrong_steps: list[WrongStep] = field(default_factory=list)
    """What of a step's credit, numbers or tasks does not follow from its episodes."""
    held_steps: int = 0
    """Training steps whose credit was computed again."""
    unheld_steps: Counter[str] = field(default_factory=Counter)
    """Those whose credit was not, by reason."""
    held_validations: int = 0
    """Validations whose numbers were computed again."""
    unheld_validations: Counter[str] = field(default_factory=Counter)
    """Those whose numbers were not, by reason."""
    held_draws: int = 0
    """Epochs of which what the curriculum drew was drawn again."""
    unheld_draws: Counter[str] = field(default_factory=Counter)
    """Those of which it was not, by reason."""
    held_losses: int = 0
    """Steps whose loss was computed again."""
    unheld_losses: Counter[str] = field(default_factory=Counter)
    """Those, of a credit that was, whose loss was not, by reason."""
    altered: list[str] = field(default_factory=list)
    """Episodes that were changed while they waited in the store, which no step was made of."""
    spreads: list[StepSpread] = field(default_factory=list)
    """The gaps of each step and version as a distribution, where they are enough for one."""

    @property
    def ok(self) -> bool:
        """True when no token, no step and no distribution is wrong."""
        return self.proof.ok and not self.wrong_steps and all(each.spread.problem is None for each in self.spreads)

    @property
    def unproven(self) -> Counter[str]:
        """Sampled tokens whose log-probabilities nothing was held to, by reason."""
        counts: Counter[str] = Counter()
        for play in self.plays:
            counts["written"] += play.sampled[WRITTEN]
            total, across = sum(play.sampled.values()) - play.sampled[WRITTEN], play.sampled[-1]
            if self.why_not:
                counts["version range"] += across
                counts["ids only"] += total - across
                continue
            gone = sum(count for version, count in play.sampled.items() if version >= 0 and version not in self.weights)
            counts["version range"] += across
            counts["no checkpoint"] += gone
            counts["left out"] += total - across - gone - play.recomputed
        return +counts


def prove_recorded(
    named: str,
    root: Path,
    *,
    steps: Sequence[int] = (),
    at_most: int | None = None,
    ids_only: bool = False,
    tolerance: float | None = None,
    fetch: bool = False,
) -> Report:
    """Prove a run, a step's file or an episode. `at_most`: episodes a step whose log-probabilities are recomputed;
    `tolerance` in nats, None by number format; `fetch`: a model that is not on this machine may be fetched unasked.
    Raises UserError."""
    from ajet.config import load_recorded_experiment
    from ajet.config.dotenv import load_project_dotenv

    target = find_target(named, root, steps)
    load_project_dotenv(record=target.run)
    experiment = load_recorded_experiment(target.run / CONFIG)
    report = Report(target, altered=told_of(target.run))
    model = experiment.ajet.model.path
    if model is None:
        raise UserError(
            "This run names no model, so its tokens cannot be derived again.", where=str(target.run / CONFIG)
        )
    by_weights = not ids_only and "recomputes" in experiment.backbone.can
    experiment.ajet.model.path = str(_model(target.run, experiment, model, weights=by_weights, fetch=fetch))
    held = _prove_ids(report, experiment)
    if not report.proof.calls and report.proof.ok:
        raise UserError("No model call is recorded in these episodes.", where=str(target.files[0]))
    if not report.proof.counts["sampled"].tokens and report.proof.ok:
        raise UserError(
            "These episodes hold no tokens: their model answered in messages.",
            where=str(target.run),
            expected="episodes that a token engine sampled (rollout.engine auto, transformers or vllm)",
        )
    if ids_only:
        report.why_not = "as asked (--ids-only)"
    elif not by_weights:
        report.why_not = f"the weights of a {experiment.backbone.name} run cannot be loaded here"
    else:
        weights: Weights = {0: (None, model)} | weights_in(_checkpoints(target.run, experiment), experiment)

        def read(play: PlayedFile) -> list[Episode]:
            return [episode for episode, _ in _episodes(target, play.file, [])]

        holds = _holds_losses(report, experiment, held) if held is not None and at_most is None else None
        prove_logprobs(report, experiment, weights, read, at_most, tolerance, holds)
    if held is not None:
        asked = not report.why_not and at_most is None
        report.held_losses, report.unheld_losses = held.losses.held, held.losses.unheld(asked=asked)
    return report


def _model(run: Path, experiment: Experiment, named: str, *, weights: bool, fetch: bool) -> Path:
    """The folder of the run's model; where no weights are needed and it is not here, a checkpoint's, whose tokenizer is
    the same."""
    from ajet.commands.recorded_run import find_recorded_model
    from ajet.engine.model_source import at_hand

    lacking = not weights and at_hand(named, base=experiment.base, weights=False) is None
    if lacking and (saved := tokenizer_in(_checkpoints(run, experiment))) is not None:
        return saved
    otherwise = "--ids-only needs no weights" if weights else ""
    return find_recorded_model(
        named, base=experiment.base, record=run, fetch=fetch, weights=weights, otherwise=otherwise
    )


def tokenizer_in(checkpoints: Checkpoints) -> Path | None:
    """The newest that has one: they are all the same."""
    saved = [each.path for each in checkpoints.all() if (each.path / "tokenizer.json").is_file()]
    return saved[-1] if saved else None


def words_of(experiment: Experiment) -> tuple[Any, Any]:
    """The tokenizer and the renderer of a recorded run, whose model is on this machine."""
    from ajet.engine.model_source import locate
    from ajet.engine.models import folder_of, load_image_tokens, load_tokenizer
    from ajet.rollout.components import make_renderer

    settings = experiment.ajet
    assert settings.model.path is not None
    source = locate(settings.model.path)
    tokenizer = load_tokenizer(source)
    return tokenizer, make_renderer(settings, tokenizer, load_image_tokens(folder_of(source, weights=False)))


def prove_episode(episode: Episode, settings: AjetConfig, words: Any, *, newest: int | None = None) -> Proof:
    """What an episode's record alone can prove. `words`: the run's renderer; `newest`: the latest policy version that
    can have sampled it."""
    drawn = choose_sampling(settings, episode.split)
    return prove(
        episode.calls,
        episode.messages,
        episode.tools,
        words.on_day(episode.day),
        lines=episode.timelines,
        untrained=episode.untrained,
        ignore_tools=settings.context_tracker.timeline_merging_policy.ignore_tools,
        budget=settings.trainer_common.micro_batch_tokens,
        episode=episode.uuid,
        truncated=drawn.top_p < 1 or drawn.top_k > 0,
        newest=newest,
        temperature=drawn.temperature if episode.split != "debug" else None,
        uses=episode.tool_uses,
    )


def _prove_ids(report: Report, experiment: Experiment) -> HeldSteps | None:
    settings, (_, words) = experiment.ajet, words_of(experiment)
    chain = read_chain(report.target.run)
    removed = chain.removed if chain is not None else {}
    finished = chain is not None and chain.unlinked.outcome == "finished"
    steps = HeldSteps(experiment, report.target.run, removed, finished=finished) if not report.target.episode else None
    with Progress(Console(stderr=True)) as progress, progress.bar("ids", len(report.target.files), "files") as bar:
        for file in report.target.files:
            step, split = step_of(file)
            if f"episodes/{file.stem}.bin" in removed:
                if steps is not None:
                    steps.unheld[REMOVED] += split == "train"
                bar.advance()
                continue
            play = PlayedFile(file, step, cast("Split", split))
            before = len(report.proof.wrong)
            found = list(_episodes(report.target, file, report.proof.wrong))
            for episode, outcome in found:
                report.proof.add(prove_episode(episode, settings, words, newest=_newest(play, outcome)))
                play.episodes += 1
                for call in episode.calls:
                    play.sampled.update(versions_of(call).tolist())
            if steps is not None:
                sound = len(report.proof.wrong) == before
                report.wrong_steps += steps.hold(step, split, found, sound=sound)
            report.plays.append(play)
            bar.advance()
    if steps is not None:
        played = [(play.step, play.split) for play in report.plays]
        report.wrong_steps += steps.together(played if report.target.whole else None)
        report.held_steps, report.unheld_steps = steps.held, +steps.unheld
        validations = steps.validations
        report.held_validations, report.unheld_validations = validations.held, +validations.unheld
        report.held_draws, report.unheld_draws = steps.draws.held, steps.draws.unheld
    return steps


def prove_logprobs(
    report: Report,
    experiment: Experiment,
    weights: Weights,
    read: Callable[[PlayedFile], Sequence[Episode]],
    at_most: int | None,
    tolerance: float | None,
    holds: Callable[[int, RecordedScorer], None] | None = None,
) -> None:
    """`read`: the episodes of what was played; `holds`: asked of each version whose weights are at hand."""
    from ajet.backbone import open_scorer

    wanted = {version for play in report.plays for version in play.sampled if version >= 0}
    chosen = {version: weights[version] for version in sorted(wanted & weights.keys())}
    plays = [(version, play) for version in chosen for play in report.plays if play.sampled[version]]
    with Progress(Console(stderr=True)) as progress, progress.bar("log-probabilities", len(plays), "files") as bar:
        for version, (checkpoint, name) in chosen.items():
            scorer = open_scorer(experiment, checkpoint)
            report.weights[version] = name
            report.computed_in = f"{scorer.dtype} on {scorer.device}"
            report.tolerance = TOLERANCE[scorer.dtype] if tolerance is None else tolerance
            again = Recomputation(scorer, experiment.ajet, version=version, tolerance=report.tolerance)
            for play in (play for other, play in plays if other == version):
                play.recomputed += again.hold(report.proof, read(play)[:at_most], play.step, play.split)
                bar.advance()
            if holds is not None:
                holds(version, scorer)
            report.spreads += [
                StepSpread(step, split, version, which, spread) for step, split, which, spread in again.spreads()
            ]
            del again
            del scorer


def _holds_losses(report: Report, experiment: Experiment, held: HeldSteps) -> Callable[[int, RecordedScorer], None]:
    """Holds the losses of the steps that began with a version's weights."""
    from ajet.backbone import open_scorer

    first: list[RecordedScorer] = []

    def reference(batch: TrainingBatch) -> Sequence[Floats] | None:
        if not experiment.ajet.trainer_common.use_kl_loss:
            return None
        first[:] = first or [open_scorer(experiment, None)]
        return first[0].reference(batch.samples, batch.temperature)

    def hold(version: int, scorer: RecordedScorer) -> None:
        begun = held.losses.begun_with(version)
        for play in (play for play in report.plays if play.split == "train" and play.step in begun):
            found = list(_episodes(report.target, play.file, []))
            report.wrong_steps += held.hold_loss(scorer, play.step, found, reference)

    return hold


def _episodes(target: Target, file: Path, wrong: list[WrongToken]) -> Iterator[tuple[Episode, Outcome]]:
    """The episodes of a file that are meant, with their outcomes. One whose record lacks a call cannot be read: it goes
    into `wrong`."""
    try:
        opened = open_record_file(file.with_suffix(".bin"))
    except FileNotFoundError:
        opened = BytesIO()
    with opened as blobs:
        for number, row in enumerate(read_rows(file), 1):
            try:
                meant, lacking = row["uuid"].startswith(target.episode), _lacking(row)
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise UserError("A line of the record is no episode.", where=f"{file}:{number}") from error
            if not meant:
                continue
            if lacking is None:
                yield recorded_of(row, blobs, f"{file}:{number}")
            else:
                wrong.append(WrongToken(row["uuid"], lacking, 0, "this call is missing from the record"))


def _newest(play: PlayedFile, outcome: Outcome) -> int:
    """The latest policy version that there was when an episode was played: every backbone calls the weights after the
    update of step N version N. One that was trained on was there before its step's update; what else a file holds may
    have ended after it, as episodes do that clients play while a server trains, or verl's asynchronous modes ahead."""
    return max(0, play.step - 1) if play.split == "train" and outcome.step is not None else play.step


def _lacking(row: dict[str, Any]) -> int | None:
    """The first call that a recorded line refers to and does not hold."""
    calls, lines = row["calls"], row["timelines"]
    apart = next((at for at, call in enumerate(calls) if call["index"] != at), None)
    if apart is not None:
        return apart
    named = [span[0] for line in lines for span in line["spans"]] + [line["leaf"] for line in lines]
    return len(calls) if max(named, default=0) >= len(calls) and named else None


def weights_in(checkpoints: Checkpoints, experiment: Experiment) -> Weights:
    """The weights in a run's checkpoints. Raises UserError where one is damaged."""
    from ajet.backbone import saved_version

    checkpoints.require_whole()
    return {
        saved_version(experiment, each.path): (each.path, f"checkpoints/{each.path.name}") for each in checkpoints.all()
    }


def _checkpoints(run: Path, experiment: Experiment) -> Checkpoints:
    return Checkpoints(checkpoints_folder(run, experiment.ajet.trainer_common.checkpoint_base_dir))

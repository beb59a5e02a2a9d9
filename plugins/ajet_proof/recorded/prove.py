"""`ajet prove`: derives recorded episodes again, token by token.

Invariant: every number printed as checked was checked. Token ids are derived by rendering, tokenizing, parsing and
packing the messages again. Log-probabilities are computed by the trainer's own forward pass with the weights of the
policy version that sampled them, and losses with the weights before the update. Steps without available weights are
listed.
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
from ajet.record.episodes import decode_recorded
from ajet.record.files import read_rows
from ajet.record.progress import Progress
from ajet.rollout.components import choose_sampling
from ajet.schema.errors import UserError
from ajet_proof.auditing.altered import list_altered_episodes
from ajet_proof.auditing.chain_state import read_chain
from ajet_proof.recorded.recompute import WRITTEN, LogprobRecomputation, list_token_versions
from ajet_proof.recorded.steps import REMOVED, StepChecker, WrongStep
from ajet_proof.recorded.target import CONFIG, ProofTarget, find_target, parse_episode_name
from ajet_proof.tokens.proof import Proof, WrongToken, prove
from ajet_proof.tokens.proof_gaps import Spread

if TYPE_CHECKING:
    from ajet.backbone.local.scorer import LocalScorer
    from ajet.config import AjetConfig, Experiment
    from ajet.schema.batch import TrainingBatch
    from ajet.schema.call import Floats
    from ajet.schema.episode import Episode, Outcome, Split

TOLERANCE = {"float32": 0.01, "bfloat16": 1.5}
"""Maximum difference of engine and trainer on an improbable token, in nats: rounding only. Measured on 20 steps of the
addition task: 3e-5 in float32, 1.2 in bfloat16."""
Weights = dict[int, tuple[Path | None, str]]
"""Policy version -> (checkpoint, display name); a checkpoint of None is the initial model."""
OUTSIDE = (
    "what judges and other models answered, and tools whose uses were not recorded",
    "output and notes of workflows, agent names within a conversation, times",
    "policy versions, if their weights differ by less than rounding",
)
"""Parts of a run's files that no check covers."""


@dataclass(slots=True)
class PlayedFile:
    """The numbers of episodes and tokens in one episode file."""

    file: Path
    step: int
    split: Split
    episodes: int = 0
    sampled: Counter[int] = field(default_factory=Counter)
    """Number of sampled tokens by policy version.

    -1 stands for tokens of a reply across an update, `WRITTEN` for given replies (supervised tokens).
    """
    recomputed: int = 0
    """Number of tokens with a recomputed log-probability."""


@dataclass(frozen=True, slots=True)
class StepSpread:
    """How far recorded and recomputed log-probabilities differ, for one policy version in one episode file."""

    step: int
    split: Split
    version: int
    which: str
    """The kind of log-probabilities: "at temperature 1" or "as sampled"."""
    spread: Spread


@dataclass(slots=True)
class ProofReport:
    """The findings of a proof: wrong tokens, steps and distributions, and unchecked parts."""

    target: ProofTarget
    proof: Proof = field(default_factory=Proof)
    plays: list[PlayedFile] = field(default_factory=list)
    weights: dict[int, str] = field(default_factory=dict)
    """Policy version -> source of the weights used to recompute its tokens."""
    tolerance: float | None = None
    """Allowed difference of the log-probability of a single improbable token, in nats."""
    computed_in: str = ""
    """Number format and device of the recomputation; empty without recomputation."""
    why_not: str = ""
    """Why no log-probability was recomputed; "" if some were."""
    wrong_steps: list[WrongStep] = field(default_factory=list)
    """Steps whose credit (advantages), numbers or tasks do not follow from their episodes."""
    held_steps: int = 0
    """Number of training steps with recomputed credit."""
    unheld_steps: Counter[str] = field(default_factory=Counter)
    """Number of training steps without recomputed credit, by reason."""
    held_validations: int = 0  # validations with recomputed numbers
    unheld_validations: Counter[str] = field(default_factory=Counter)
    """Validations without recomputed numbers, by reason."""
    held_draws: int = 0
    """Number of epochs whose task order was drawn again from the curriculum."""
    unheld_draws: Counter[str] = field(default_factory=Counter)
    """Number of epochs not drawn again, by reason."""
    held_losses: int = 0
    """Steps with a recomputed loss."""
    unheld_losses: Counter[str] = field(default_factory=Counter)
    """Steps with recomputed credit and no recomputed loss, by reason."""
    altered: list[str] = field(default_factory=list)
    """Episodes that changed in the store and were never trained on."""
    spreads: list[StepSpread] = field(default_factory=list)
    """Gap distributions of each step and policy version with enough tokens."""

    @property
    def ok(self) -> bool:
        """True if no token, step or distribution is wrong."""
        return self.proof.ok and not self.wrong_steps and all(spread.spread.problem is None for spread in self.spreads)

    @property
    def unproven(self) -> Counter[str]:
        """Number of sampled tokens whose log-probabilities were not checked, by reason."""
        counts: Counter[str] = Counter()
        for play in self.plays:
            counts["written"] += play.sampled[WRITTEN]
            sampled_count, version_range_count = sum(play.sampled.values()) - play.sampled[WRITTEN], play.sampled[-1]
            if self.why_not:
                counts["version range"] += version_range_count
                counts["ids only"] += sampled_count - version_range_count
                continue
            without_checkpoint = sum(
                count for version, count in play.sampled.items() if version >= 0 and version not in self.weights
            )
            counts["version range"] += version_range_count
            counts["no checkpoint"] += without_checkpoint
            counts["left out"] += sampled_count - version_range_count - without_checkpoint - play.recomputed
        return +counts


def prove_record(
    named: str,
    root: Path,
    *,
    steps: Sequence[int] = (),
    at_most: int | None = None,
    ids_only: bool = False,
    tolerance: float | None = None,
    fetch: bool = False,
) -> ProofReport:
    """Derive the tokens of a run, an episode file or an episode again, and compare them with the recorded ones.

    Args:
        named: The run's name or folder, the file, or the first letters of the episode's uuid.
        root: Folder of all runs.
        steps: Steps to check; empty for all.
        at_most: Maximum number of episodes per step whose log-probabilities are recomputed, or None for all.
        ids_only: True to check token ids only, without weights.
        tolerance: Allowed difference of the log-probability of a single improbable token, in nats. None chooses it by
            the number format.
        fetch: True to download a missing model without asking.

    Raises:
        UserError: the target is not found, has no tokens, or its model is missing.
    """
    from ajet.config import load_recorded_experiment
    from ajet.config.dotenv import load_project_dotenv

    target = find_target(named, root, steps)
    load_project_dotenv(record=target.run)
    experiment = load_recorded_experiment(target.run / CONFIG)
    report = ProofReport(target, altered=list_altered_episodes(target.run))
    model = experiment.ajet.model.path
    if model is None:
        raise UserError("This run has no model, so its tokens cannot be derived again.", where=str(target.run / CONFIG))
    # Checkpoints of some backbones (verl, Trinity) cannot be loaded for a recomputation in this process.
    needs_weights = not ids_only and "recomputes" in experiment.backbone.can
    checkpoints = Checkpoints(checkpoints_folder(target.run, experiment.ajet.trainer_common.checkpoint_base_dir))
    experiment.ajet.model.path = str(
        find_model(experiment, checkpoints, record=target.run, weights=needs_weights, fetch=fetch)
    )
    step_check = _prove_ids(report, experiment)
    if not report.proof.calls and report.proof.ok:
        raise UserError("No model call is recorded in these episodes.", where=str(target.files[0]))
    if not report.proof.counts["sampled"].tokens and report.proof.ok:
        raise UserError(
            "These episodes have no token ids: an endpoint answered in messages.",
            where=str(target.run),
            expected="episodes of a token engine (rollout.engine auto, transformers or vllm)",
        )
    if ids_only:
        report.why_not = "requested by --ids-only"
    elif not needs_weights:
        report.why_not = f"this command cannot load the weights of a run of the {experiment.backbone.name} backbone"
    else:
        weights: Weights = {0: (None, model)} | find_weights(checkpoints, experiment)

        def read(play: PlayedFile) -> list[Episode]:
            return [episode for episode, _ in _read_episodes(target, play.file, [])]

        # A loss needs the log-probabilities of all episodes of its step, so --at-most skips the losses.
        check_losses = (
            _make_loss_check(report, experiment, step_check) if step_check is not None and at_most is None else None
        )
        prove_logprobs(report, experiment, weights, read, at_most, tolerance, check_losses)
    if step_check is not None:
        is_complete = not report.why_not and at_most is None
        report.held_losses, report.unheld_losses = (
            step_check.losses.held,
            step_check.losses.unheld(is_complete=is_complete),
        )
    return report


def find_model(
    experiment: Experiment, checkpoints: Checkpoints | None, *, record: Path, weights: bool, fetch: bool
) -> Path:
    """Return the folder of a recorded run's model.

    Args:
        checkpoints: The run's checkpoints, or None. One of them is enough without weights: its tokenizer is the same.
        record: Where the run is recorded, for errors.
        weights: True if the model's weights are needed.
        fetch: True to download a missing model without asking.
    """
    from ajet.commands.recorded_run import find_recorded_model
    from ajet.engine.model_source import find_local_model

    base, name = experiment.base, str(experiment.ajet.model.path)
    if not weights and checkpoints is not None and find_local_model(name, base=base, weights=False) is None:
        saved = find_tokenizer(checkpoints)
        if saved is not None:
            return saved
    otherwise = "--ids-only needs no weights" if weights else ""
    return find_recorded_model(name, base=base, record=record, fetch=fetch, weights=weights, otherwise=otherwise)


def find_tokenizer(checkpoints: Checkpoints) -> Path | None:
    """Return the folder of the newest checkpoint that has a tokenizer, or None. All tokenizers of a run are equal."""
    tokenizer_folders = [
        checkpoint.path for checkpoint in checkpoints.all() if (checkpoint.path / "tokenizer.json").is_file()
    ]
    return tokenizer_folders[-1] if tokenizer_folders else None


def load_tokenizer_and_renderer(experiment: Experiment) -> tuple[Any, Any]:
    """Return the tokenizer and the renderer of a recorded run. The model must be on this machine."""
    from ajet.engine.model_source import locate_model
    from ajet.engine.models import load_image_tokens, load_tokenizer, prepare_folder
    from ajet.rollout.components import make_renderer

    settings = experiment.ajet
    assert settings.model.path is not None
    source = locate_model(settings.model.path)
    tokenizer = load_tokenizer(source)
    return tokenizer, make_renderer(settings, tokenizer, load_image_tokens(prepare_folder(source, weights=False)))


def prove_episode(episode: Episode, settings: AjetConfig, renderer: Any, *, newest: int | None = None) -> Proof:
    """Derive the token ids of an episode again from its messages, without the model's weights.

    Args:
        newest: Highest policy version that can have sampled the episode, or None if unknown.
    """
    sampling = choose_sampling(settings, episode.split)
    return prove(
        episode.calls,
        episode.messages,
        episode.tools,
        renderer.on_day(episode.day),
        lines=episode.timelines,
        untrained=episode.untrained,
        ignore_tools=settings.context_tracker.timeline_merging_policy.ignore_tools,
        budget=settings.trainer_common.micro_batch_tokens,
        episode=episode.uuid,
        truncated=sampling.top_p < 1 or sampling.top_k > 0,
        newest=newest,
        # Episodes of `ajet debug` may have another temperature than the settings.
        temperature=sampling.temperature if episode.split != "debug" else None,
        uses=episode.tool_uses,
    )


def _prove_ids(report: ProofReport, experiment: Experiment) -> StepChecker | None:
    """Check the token ids of every recorded episode, and the rows of every step. Needs no weights.

    Returns:
        The checker of the run's steps, for the check of their losses, or None if only one episode is proven.
    """
    settings, (_, renderer) = experiment.ajet, load_tokenizer_and_renderer(experiment)
    chain = read_chain(report.target.run)
    removed = chain.removed if chain is not None else {}
    finished = chain is not None and chain.unlinked.outcome == "finished"
    step_checker = (
        StepChecker(experiment, report.target.run, removed, finished=finished) if not report.target.episode else None
    )
    with Progress(Console(stderr=True)) as progress, progress.bar("ids", len(report.target.files), "files") as bar:
        for file in report.target.files:
            step, split = parse_episode_name(file)
            if f"episodes/{file.stem}.bin" in removed:
                if step_checker is not None:
                    step_checker.unheld[REMOVED] += split == "train"
                bar.advance()
                continue
            play = PlayedFile(file, step, cast("Split", split))
            wrong_before = len(report.proof.wrong)
            episodes_with_outcomes = list(_read_episodes(report.target, file, report.proof.wrong))
            for episode, outcome in episodes_with_outcomes:
                report.proof.add(prove_episode(episode, settings, renderer, newest=_find_newest_version(play, outcome)))
                play.episodes += 1
                for call in episode.calls:
                    play.sampled.update(list_token_versions(call).tolist())
            if step_checker is not None:
                is_sound = len(report.proof.wrong) == wrong_before
                report.wrong_steps += step_checker.check_file(step, split, episodes_with_outcomes, sound=is_sound)
            report.plays.append(play)
            bar.advance()
    if step_checker is not None:
        files = [(play.step, play.split) for play in report.plays]
        report.wrong_steps += step_checker.check_run(files if report.target.is_complete else None)
        report.held_steps, report.unheld_steps = step_checker.held, +step_checker.unheld
        validations = step_checker.validations
        report.held_validations, report.unheld_validations = validations.held, +validations.unheld
        report.held_draws, report.unheld_draws = step_checker.draws.held, step_checker.draws.unheld
    return step_checker


def prove_logprobs(
    report: ProofReport,
    experiment: Experiment,
    weights: Weights,
    read_episodes: Callable[[PlayedFile], Sequence[Episode]],
    at_most: int | None,
    tolerance: float | None,
    check_version: Callable[[int, LocalScorer], None] | None = None,
) -> None:
    """Recompute the log-probabilities of the report's episode files, and add the findings to the report.

    Args:
        weights: The available weights by policy version.
        read_episodes: Reads the episodes of a file.
        at_most: Maximum number of episodes per file, or None for all.
        tolerance: Allowed difference of a single improbable token in nats, or None for the number format's default.
        check_version: Called with each policy version while its weights are loaded in the scorer.
    """
    from ajet.backbone import open_scorer

    versions = {version for play in report.plays for version in play.sampled if version >= 0}
    used_weights = {version: weights[version] for version in sorted(versions & weights.keys())}
    plays = [(version, play) for version in used_weights for play in report.plays if play.sampled[version]]
    with Progress(Console(stderr=True)) as progress, progress.bar("log-probabilities", len(plays), "files") as bar:
        for version, (checkpoint, name) in used_weights.items():
            scorer = open_scorer(experiment, checkpoint)
            report.weights[version] = name
            report.computed_in = f"{scorer.dtype} on {scorer.device}"
            report.tolerance = TOLERANCE[scorer.dtype] if tolerance is None else tolerance
            recomputation = LogprobRecomputation(scorer, experiment.ajet, version=version, tolerance=report.tolerance)
            for play in (play for play_version, play in plays if play_version == version):
                play.recomputed += recomputation.check_episodes(
                    report.proof, read_episodes(play)[:at_most], play.step, play.split
                )
                bar.advance()
            if check_version is not None:
                check_version(version, scorer)
            report.spreads += [
                StepSpread(step, split, version, which, spread)
                for step, split, which, spread in recomputation.measure_spreads()
            ]
            # Free the model's memory before the next version is loaded.
            del recomputation
            del scorer


def _make_loss_check(
    report: ProofReport, experiment: Experiment, step_checker: StepChecker
) -> Callable[[int, LocalScorer], None]:
    """Return a function that checks the losses of all steps whose update started from a policy version.

    The function takes the version and a scorer with its weights.
    """
    from ajet.backbone import open_scorer

    # Holds the scorer of the reference model (the initial weights) after its first use.
    reference_scorer: list[LocalScorer] = []

    def score_by_reference(batch: TrainingBatch) -> Sequence[Floats] | None:
        """Return the reference model's log-probabilities of a batch, or None if the run has no KL term."""
        if not experiment.ajet.trainer_common.use_kl_loss:
            return None
        reference_scorer[:] = reference_scorer or [open_scorer(experiment, None)]
        return reference_scorer[0].reference(batch.samples, batch.temperature)

    def check_losses(version: int, scorer: LocalScorer) -> None:
        """Check the losses of the steps that started from this version, and add the problems to the report."""
        steps_from_version = step_checker.losses.list_steps_from(version)
        for play in (play for play in report.plays if play.split == "train" and play.step in steps_from_version):
            recorded = list(_read_episodes(report.target, play.file, []))
            report.wrong_steps += step_checker.check_loss(scorer, play.step, recorded, score_by_reference)

    return check_losses


def _read_episodes(target: ProofTarget, file: Path, wrong: list[WrongToken]) -> Iterator[tuple[Episode, Outcome]]:
    """Yield the episodes of a file that the target names, each with its use in a training step.

    Args:
        wrong: gets an entry for each line in which a model call is missing; such an episode is not yielded.
    """
    try:
        arrays = open_record_file(file.with_suffix(".bin"))
    except FileNotFoundError:
        arrays = BytesIO()
    with arrays as blobs:
        for number, row in enumerate(read_rows(file), 1):
            try:
                is_wanted, missing = row["uuid"].startswith(target.episode), _find_missing_call(row)
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise UserError(
                    "A line of the record cannot be read as an episode.", where=f"{file}:{number}"
                ) from error
            if not is_wanted:
                continue
            if missing is None:
                yield decode_recorded(row, blobs, f"{file}:{number}")
            else:
                wrong.append(WrongToken(row["uuid"], missing, 0, "this call is missing from the record"))


def _find_newest_version(play: PlayedFile, outcome: Outcome) -> int:
    """Return the highest policy version that can have sampled an episode.

    Every backbone names the weights after the update of step N version N. A trained episode was finished before its
    step's update. Other episodes of a file may have ended later: client episodes during training, or verl's
    asynchronous rollouts.
    """
    return max(0, play.step - 1) if play.split == "train" and outcome.step is not None else play.step


def _find_missing_call(row: dict[str, Any]) -> int | None:
    """Return the index of the first call that an episode's timelines refer to but its row lacks, or None."""
    calls, timelines = row["calls"], row["timelines"]
    # Calls are numbered from 0 without gaps; a wrong number shows the place of a missing call.
    first_gap = next((position for position, call in enumerate(calls) if call["index"] != position), None)
    if first_gap is not None:
        return first_gap
    references = [span[0] for timeline in timelines for span in timeline["spans"]] + [
        timeline["leaf"] for timeline in timelines
    ]
    return len(calls) if max(references, default=-1) >= len(calls) else None


def find_weights(checkpoints: Checkpoints, experiment: Experiment) -> Weights:
    """Return the weights in a run's checkpoints by policy version. Raises UserError for a damaged checkpoint."""
    from ajet.backbone import saved_version

    checkpoints.require_whole()
    return {
        saved_version(experiment, checkpoint.path): (checkpoint.path, f"checkpoints/{checkpoint.path.name}")
        for checkpoint in checkpoints.all()
    }

"""`ajet prove --store`: proves the episodes in a store without the run's folder.

A store is the database through which samplers pass episodes to a trainer. A position is a task's place in the training
order. Invariant: the code only reads. Checks are those of a recorded run; `OUTSIDE_A_STORE` lists the missing ones. The
model must match the fingerprints that the trainer announced. Episodes must match their digests and their names.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ajet.backbone.decoupled.terms import fingerprint_template
from ajet.record.checkpoints import Checkpoints
from ajet.record.progress import Progress
from ajet.schema.commands import format_command
from ajet.schema.episode import NO_OUTCOME
from ajet.schema.errors import UserError
from ajet.store import Address, StoreReader, open_reader
from ajet.store.reader import StoredPosition
from ajet_proof.recorded.prove import (
    PlayedFile,
    ProofReport,
    Weights,
    find_model,
    find_weights,
    load_tokenizer_and_renderer,
    prove_episode,
    prove_logprobs,
)
from ajet_proof.recorded.recompute import list_token_versions
from ajet_proof.recorded.steps import StepChecker, WrongStep
from ajet_proof.recorded.target import CONFIG, SHORTEST, ProofTarget

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.schema.episode import Episode, Split
    from ajet.store.shared import Policy

OUTSIDE_A_STORE = (
    "log-probabilities of versions without weights on this machine; losses, numbers and credit of steps, the chain, "
    "and episodes removed after their step (use `ajet prove RUN` and `ajet audit RUN` with its folder)"
)


class ChangedRecord(WrongStep):
    """An episode in a store that does not match its digest."""

    def __str__(self) -> str:
        return self.what


@dataclass(slots=True)
class StoreReport:
    """The findings of `ajet prove --store`, with counts of the store's positions."""

    store: str  # address
    run: str  # run id
    report: ProofReport
    positions: Counter[str] = field(default_factory=Counter)
    """Number of positions with episodes, by state."""
    gone: int = 0
    """Number of positions that were started and have no episode left, for a proof of the complete store."""

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return self.report.ok


def prove_store(
    text: str,
    *,
    run: str = "",
    episode: str = "",
    steps: Sequence[int] = (),
    at_most: int | None = None,
    ids_only: bool = False,
    tolerance: float | None = None,
    fetch: bool = False,
) -> StoreReport:
    """Derive the tokens of a store's episodes again, and compare them with the stored ones.

    Args:
        text: Address of the store.
        run: Name of the run that the store must belong to, and of the database if the address has none.
        episode: First letters of the uuid of the only episode to prove, or "" for all.
        steps: Steps whose episodes are proven; empty for all episodes.
        at_most, ids_only, tolerance, fetch: As in `prove_record`.

    Raises:
        UserError: the store cannot be read, or has no matching episode, or the model is missing.
    """
    from ajet.config.dotenv import load_dotenv_files

    load_dotenv_files([Path.cwd()])
    if episode and (len(episode) < SHORTEST or not episode.isalnum()):
        raise UserError(
            f"{episode} cannot be the beginning of an episode's id.",
            where="command line",
            expected=f"with --store, at least {SHORTEST} letters of an episode's id; name a run with --run",
        )
    address = Address.of(text, base=Path.cwd(), run=run)
    reading = open_reader(address)
    try:
        with tempfile.TemporaryDirectory() as folder:
            experiment = _load_experiment(reading, address, Path(folder))
            _require_run(run, experiment, reading, address)
            proving = _StoreProver(reading, address, experiment, ids_only=ids_only, fetch=fetch)
            return proving.prove(episode, steps, at_most, tolerance)
    finally:
        reading.close()


def _load_experiment(reading: StoreReader, address: Address, folder: Path) -> Experiment:
    """Load the experiment from the settings that the run's trainer wrote into the store.

    Args:
        folder: A temporary folder for the settings file.
    """
    from ajet.config import load_recorded_experiment

    if not reading.settings:
        raise UserError(
            "The store has no settings of its run, so the prompts' token ids cannot be computed again.",
            where=address.shown,
            expected="a store opened by a trainer, which writes its settings",
            do=f"Start the run again, or prove the run's folder: {format_command('prove', 'RUN')}.",
        )
    name = address.database or (address.path.stem if address.path is not None else "")
    (folder / name).mkdir()
    file = folder / name / CONFIG
    file.write_text(reading.settings)
    return load_recorded_experiment(file)


def _require_run(run: str, experiment: Experiment, reading: StoreReader, address: Address) -> None:
    """Raise UserError if the store belongs to another run than `run`, the value of --run. "" accepts any store."""
    own_names = [str(experiment.ajet.experiment_name or ""), address.database, reading.run]
    if run and run not in own_names:
        raise UserError(
            f"The store belongs to another run than {run}.",
            where=address.shown,
            expected=f"--run {own_names[0] or reading.run}, or no --run: a store has one run",
        )


class _StoreProver:
    """Proves the episodes of one store and collects the findings."""

    def __init__(
        self, reading: StoreReader, address: Address, experiment: Experiment, *, ids_only: bool, fetch: bool
    ) -> None:
        """Load the model of the store's run, and compare it with the one that the trainer announced.

        Args:
            reading: reads the store.
            experiment: the run's experiment, from the settings in the store.
            ids_only: True to check token ids only, without weights.
            fetch: True to download a missing model without asking.

        Raises:
            UserError: the run has no model, or the model is missing or differs from the trainer's.
        """
        self._reading = reading
        self._address = address
        self._experiment = experiment
        self._policy = reading.announced()
        self._model_name = str(experiment.ajet.model.path or "")
        if not self._model_name:
            raise UserError("This run has no model, so its tokens cannot be derived again.", where=address.shown)
        needs_weights = not ids_only and "recomputes" in experiment.backbone.can
        self._why_not = (
            ""
            if needs_weights
            else f"this command cannot load the weights of a run of the {experiment.backbone.name} backbone"
        )
        if ids_only:
            self._why_not = "requested by --ids-only"
        self._checkpoints = _open_checkpoints(self._policy)
        experiment.ajet.model.path = str(
            find_model(experiment, self._checkpoints, record=Path(address.shown), weights=needs_weights, fetch=fetch)
        )
        tokenizer, self._renderer = load_tokenizer_and_renderer(experiment)
        _require_same_model(self._policy, experiment, tokenizer, address, weights=needs_weights)
        self._steps = StepChecker(experiment, experiment.yaml_path.parent)
        self._played_files: dict[tuple[int, Split], PlayedFile] = {}
        self._positions_read: dict[tuple[int, Split], dict[int, None]] = defaultdict(dict)
        """(step, split) -> its positions, in order of reading."""

    def prove(self, beginning: str, steps: Sequence[int], at_most: int | None, tolerance: float | None) -> StoreReport:
        """Prove the matching episodes of the store.

        Args:
            beginning: First letters of the episodes' uuid, or "" for all.
            steps: Steps whose episodes are proven; empty for all episodes.
            at_most: Maximum number of episodes per step whose log-probabilities are recomputed, or None for all.
            tolerance: In nats, or None for the number format's default.

        Raises:
            UserError: no episode matches.
        """
        orders = self._reading.orders(beginning, steps)
        if not orders:
            beginning_text = f" that begins with {beginning}" if beginning else ""
            step_text = f" that step {', '.join(map(str, steps))} used" if steps else ""
            raise UserError(
                f"The store contains no episode{beginning_text}{step_text}.",
                where=self._address.shown,
                expected="episodes of samplers or clients, stored until their step's checkpoint is no longer needed",
                do="Name a run with --run."
                if beginning
                else f"Prove the run's folder: {format_command('prove', 'RUN')}.",
            )
        report = ProofReport(ProofTarget(self._experiment.yaml_path.parent, (), beginning))
        store_report = StoreReport(self._address.shown, self._reading.run, report)
        with Progress(Console(stderr=True)) as progress, progress.bar("ids", len(orders), "positions") as bar:
            for order in orders:
                if (position := self._reading.position(order)) is not None:
                    store_report.positions[position.state] += 1
                    self._check_position(report, position, beginning)
                bar.advance()
        if not beginning and not steps:
            store_report.gone = max(0, self._reading.begun() - sum(order >= 0 for order in orders))
        report.plays = [play for _, play in sorted(self._played_files.items())]
        if not report.proof.counts["sampled"].tokens and report.ok:
            raise UserError(
                "The store's episodes have no token ids: an endpoint answered in messages, or not at all.",
                where=self._address.shown,
                expected="episodes of a token engine (rollout.engine auto, transformers or vllm)",
            )
        report.why_not = self._why_not
        if not report.why_not:
            weights: Weights = {0: (None, self._model_name)}
            if self._checkpoints is not None:
                weights |= find_weights(self._checkpoints, self._experiment)
            prove_logprobs(report, self._experiment, weights, self._make_reader(beginning), at_most, tolerance)
        return store_report

    def _check_position(self, report: ProofReport, position: StoredPosition, beginning: str) -> None:
        """Prove the episodes of a position, and check their names if the group is complete."""
        report.wrong_steps += [ChangedRecord(0, "train", problem) for problem in position.altered]
        matching_episodes = [
            attempt.episode for attempt in position.attempts if attempt.episode.uuid.startswith(beginning)
        ]
        newest, wrong_before = self._find_newest_version(position, matching_episodes), len(report.proof.wrong)
        for episode in matching_episodes:
            report.proof.add(prove_episode(episode, self._experiment.ajet, self._renderer, newest=newest))
            step_and_split = position.used[0] if position.used else episode.step, episode.split
            play = self._played_files.setdefault(step_and_split, PlayedFile(Path(self._address.shown), *step_and_split))
            self._positions_read[step_and_split][position.order] = None
            play.episodes += 1
            for call in episode.calls:
                play.sampled.update(list_token_versions(call).tolist())
        if not position.altered and not beginning and len(report.proof.wrong) == wrong_before:
            report.wrong_steps += self._check_owners(position)

    def _check_owners(self, position: StoredPosition) -> list[WrongStep]:
        """Return a problem for each episode of another run, and for each wrong name in a complete group."""
        problems = [
            WrongStep(
                attempt.episode.step, attempt.episode.split, f"episode {attempt.episode.uuid} belongs to another run"
            )
            for attempt in position.attempts
            if attempt.episode.run and attempt.episode.run != self._reading.run
        ]
        group = [attempt.episode for attempt in position.attempts if not attempt.alone]
        if group and (position.state == "closed" or position.used):
            step = position.used[-1] if position.used else max(episode.step for episode in group)
            problems += self._steps.check_file(step, "train", [(episode, NO_OUTCOME) for episode in group], sound=False)
        return problems

    def _find_newest_version(self, position: StoredPosition, episodes: Sequence[Episode]) -> int | None:
        """Return the highest policy version that can have sampled a position's episodes, or None if unknown."""
        if position.used:
            return max(0, position.used[0] - 1)
        latest = _get_version(self._policy)
        newest = max((run.high for episode in episodes for call in episode.calls for run in call.versions), default=0)
        # The trainer may have announced a newer version since the store was opened.
        if latest is not None and newest > latest:
            self._policy = self._reading.announced()
            latest = _get_version(self._policy)
        return latest

    def _make_reader(self, beginning: str) -> Callable[[PlayedFile], list[Episode]]:
        """Return a function that reads the proven episodes of a step and split again from the store."""

        def read(play: PlayedFile) -> list[Episode]:
            """Read the proven episodes of one step and split from the store."""
            positions = map(self._reading.position, self._positions_read[play.step, play.split])
            episodes = [
                attempt.episode for position in positions if position is not None for attempt in position.attempts
            ]
            return [
                episode for episode in episodes if episode.uuid.startswith(beginning) and episode.split == play.split
            ]

        return read


def _open_checkpoints(policy: Policy | None) -> Checkpoints | None:
    """Return the checkpoints next to the announced weights, or None if they are not on this machine."""
    if policy is None or not policy.weights or not Path(policy.weights).is_dir():
        return None
    return Checkpoints(Path(policy.weights).parent)


def _get_version(policy: Policy | None) -> int | None:
    """Return the policy version that the trainer last announced, or None before the first announcement."""
    return None if policy is None else policy.told.get("version")


def _require_same_model(
    policy: Policy | None, experiment: Experiment, tokenizer: Any, address: Address, *, weights: bool
) -> None:
    """Raise UserError if the local model differs from the one that the trainer announced in the store.

    Args:
        policy: The trainer's last announcement, or None before the first, which skips the check.
        weights: True to compare the weights, too.
    """
    from ajet.engine.models import fingerprint_tokenizer, fingerprint_weights

    if policy is None:
        return
    settings = experiment.ajet
    differing = []
    if policy.tokenizer and policy.tokenizer != fingerprint_tokenizer(tokenizer):
        differing.append("tokenizer")
    if policy.template and policy.template != fingerprint_template(settings, tokenizer):
        differing.append("chat template")
    if weights and policy.lineage and policy.lineage != fingerprint_weights(settings):
        differing.append("weights")
    if differing:
        raise UserError(
            f"The model on this machine differs from the run's: {' and '.join(differing)}.",
            where=str(settings.model.path),
            expected=f"the model announced by the trainer in {address.shown}",
            do="Use the same files" + (", or skip the weights with --ids-only." if weights else "."),
        )

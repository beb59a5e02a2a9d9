"""`ajet prove --store`: what a store holds, derived a second time, where its address is all there is.

Invariant: it only reads, and needs nothing of the run's folder. What is printed as checked was checked, by the
functions that prove a recorded run; what a store cannot tell (`OUTSIDE_A_STORE`) is said. The model here is held to the
fingerprints that the trainer announced, episodes to their digests and to the names that their places in the run give
them.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ajet.backbone.decoupled.terms import template_of
from ajet.record.checkpoints import Checkpoints
from ajet.record.progress import Progress
from ajet.schema.commands import command
from ajet.schema.episode import NO_OUTCOME
from ajet.schema.errors import UserError
from ajet.store import Address, StoreReader, open_reader
from ajet.store.reader import StoredPosition
from ajet_proof.recorded.prove import (
    PlayedFile,
    Report,
    Weights,
    prove_episode,
    prove_logprobs,
    tokenizer_in,
    weights_in,
    words_of,
)
from ajet_proof.recorded.recompute import versions_of
from ajet_proof.recorded.steps import HeldSteps, WrongStep
from ajet_proof.recorded.target import CONFIG, SHORTEST, Target

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.schema.episode import Episode, Split
    from ajet.store.shared import Policy

OUTSIDE_A_STORE = (
    "log-probabilities of versions whose weights are not on this machine; losses and numbers of steps, their credit, "
    "the chain, and episodes that were let go of after their step, which the run's folder has (ajet prove RUN and ajet "
    "audit RUN, where it is)"
)


class ChangedRecord(WrongStep):
    """An episode that is not what was put."""

    def __str__(self) -> str:
        """A sentence for a person."""
        return self.what


@dataclass(slots=True)
class StoreReport:
    """The findings of `ajet prove --store`."""

    store: str
    """Its address."""
    run: str
    """The identity of its run."""
    report: Report
    positions: Counter[str] = field(default_factory=Counter)
    """With episodes, by state."""
    gone: int = 0
    """Positions of the order that were begun once and of which nothing is here, where the whole store was meant."""

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return self.report.ok


def prove_stored(
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
    """Prove what the store at the address `text` holds. `run`: whose it is to be, and the database where none is named;
    `episode`: the beginning of the only uuid that is meant; `steps`: only what these used; the others as
    `prove_recorded` has them. Raises UserError."""
    from ajet.config.dotenv import load_dotenv_files

    load_dotenv_files([Path.cwd()])
    if episode and (len(episode) < SHORTEST or not episode.isalnum()):
        raise UserError(
            f"{episode} is no beginning of an episode's uuid.",
            where="command line",
            expected=f"with --store, {SHORTEST} letters of one at least; a run is named with --run",
        )
    address = Address.of(text, base=Path.cwd(), run=run)
    reading = open_reader(address)
    try:
        with tempfile.TemporaryDirectory() as folder:
            experiment = _experiment(reading, address, Path(folder))
            _require_run(run, experiment, reading, address)
            proving = _Proving(reading, address, experiment, ids_only=ids_only, fetch=fetch)
            return proving.prove(episode, steps, at_most, tolerance)
    finally:
        reading.close()


def _experiment(reading: StoreReader, address: Address, folder: Path) -> Experiment:
    """The experiment of the settings that the run's trainer left in the store, as data."""
    from ajet.config import recorded_experiment

    if not reading.settings:
        raise UserError(
            "The store does not tell its run's settings, so its tokens cannot be derived again.",
            where=address.shown,
            expected="a store that a trainer has opened: it leaves them there",
            do=f"Start its run once more, or prove the run's own folder: {command('prove', 'RUN')}.",
        )
    name = address.database or (address.path.stem if address.path is not None else "")
    (folder / name).mkdir()
    file = folder / name / CONFIG
    file.write_text(reading.settings)
    return recorded_experiment(file)


def _require_run(run: str, experiment: Experiment, reading: StoreReader, address: Address) -> None:
    own = [str(experiment.ajet.experiment_name or ""), address.database, reading.run]
    if run and run not in own:
        raise UserError(
            f"The store is not that of {run}.",
            where=address.shown,
            expected=f"--run {own[0] or reading.run}, or no --run: a store has one run",
        )


class _Proving:
    """Proves the episodes of one store."""

    def __init__(
        self, reading: StoreReader, address: Address, experiment: Experiment, *, ids_only: bool, fetch: bool
    ) -> None:
        self._reading, self._address, self._experiment = reading, address, experiment
        self._policy = reading.announced()
        self._named = str(experiment.ajet.model.path or "")
        if not self._named:
            raise UserError("This run names no model, so its tokens cannot be derived again.", where=address.shown)
        by_weights = not ids_only and "recomputes" in experiment.backbone.can
        self._why_not = "" if by_weights else f"the weights of a {experiment.backbone.name} run cannot be loaded here"
        if ids_only:
            self._why_not = "as asked (--ids-only)"
        self._checkpoints = _checkpoints_of(self._policy)
        experiment.ajet.model.path = str(self._model(weights=by_weights, fetch=fetch))
        tokenizer, self._words = words_of(experiment)
        _require_same_model(self._policy, experiment, tokenizer, address, weights=by_weights)
        self._steps = HeldSteps(experiment, experiment.yaml_path.parent)
        self._plays: dict[tuple[int, Split], PlayedFile] = {}
        self._orders: dict[tuple[int, Split], dict[int, None]] = defaultdict(dict)
        """Where what was played for a step, or used by it, stands."""

    def prove(self, beginning: str, steps: Sequence[int], at_most: int | None, tolerance: float | None) -> StoreReport:
        """Raises UserError where nothing is there that is meant."""
        orders = self._reading.orders(beginning, steps)
        if not orders:
            of = f" that begins with {beginning}" if beginning else ""
            used = f" that step {', '.join(map(str, steps))} used" if steps else ""
            raise UserError(
                f"The store holds no episode{of}{used}.",
                where=self._address.shown,
                expected="what samplers or clients put, until its step's checkpoint is no longer gone back to",
                do="A run is named with --run."
                if beginning
                else f"Prove the run's own folder: {command('prove', 'RUN')}.",
            )
        report = Report(Target(self._experiment.yaml_path.parent, (), beginning))
        found = StoreReport(self._address.shown, self._reading.run, report)
        with Progress(Console(stderr=True)) as progress, progress.bar("ids", len(orders), "positions") as bar:
            for order in orders:
                if (position := self._reading.position(order)) is not None:
                    found.positions[position.state] += 1
                    self._hold(report, position, beginning)
                bar.advance()
        if not beginning and not steps:
            found.gone = max(0, self._reading.begun() - sum(order >= 0 for order in orders))
        report.plays = [play for _, play in sorted(self._plays.items())]
        if not report.proof.counts["sampled"].tokens and report.ok:
            raise UserError(
                "The store's episodes hold no tokens: their model answered in messages, or not at all.",
                where=self._address.shown,
                expected="episodes that a token engine sampled (rollout.engine auto, transformers or vllm)",
            )
        report.why_not = self._why_not
        if not report.why_not:
            weights: Weights = {0: (None, self._named)}
            if self._checkpoints is not None:
                weights |= weights_in(self._checkpoints, self._experiment)
            prove_logprobs(report, self._experiment, weights, self._read(beginning), at_most, tolerance)
        return found

    def _hold(self, report: Report, position: StoredPosition, beginning: str) -> None:
        """A position's episodes to what they say, and, where its group is whole, to their names."""
        report.wrong_steps += [ChangedRecord(0, "train", what) for what in position.altered]
        meant = [each.episode for each in position.kept if each.episode.uuid.startswith(beginning)]
        newest, before = self._newest(position, meant), len(report.proof.wrong)
        for episode in meant:
            report.proof.add(prove_episode(episode, self._experiment.ajet, self._words, newest=newest))
            at = position.used[0] if position.used else episode.step, episode.split
            play = self._plays.setdefault(at, PlayedFile(Path(self._address.shown), *at))
            self._orders[at][position.order] = None
            play.episodes += 1
            for call in episode.calls:
                play.sampled.update(versions_of(call).tolist())
        if not position.altered and not beginning and len(report.proof.wrong) == before:
            report.wrong_steps += self._names(position)

    def _names(self, position: StoredPosition) -> list[WrongStep]:
        """What is wrong with whose a position's episodes are, and with their group, once it is whole."""
        wrong = [
            WrongStep(each.episode.step, each.episode.split, f"episode {each.episode.uuid} is of another run")
            for each in position.kept
            if each.episode.run and each.episode.run != self._reading.run
        ]
        group = [each.episode for each in position.kept if not each.alone]
        if group and (position.state == "closed" or position.used):
            step = position.used[-1] if position.used else max(episode.step for episode in group)
            wrong += self._steps.hold(step, "train", [(each, NO_OUTCOME) for each in group], sound=False)
        return wrong

    def _newest(self, position: StoredPosition, episodes: Sequence[Episode]) -> int | None:
        """The latest policy version that can have sampled a position's episodes; None: nobody says."""
        if position.used:
            return max(0, position.used[0] - 1)
        latest = _version(self._policy)
        there = max((run.high for each in episodes for call in each.calls for run in call.versions), default=0)
        if latest is not None and there > latest:  # it may have been announced since
            self._policy = self._reading.announced()
            latest = _version(self._policy)
        return latest

    def _read(self, beginning: str) -> Callable[[PlayedFile], list[Episode]]:
        def read(play: PlayedFile) -> list[Episode]:
            positions = map(self._reading.position, self._orders[play.step, play.split])
            kept = [each.episode for position in positions if position is not None for each in position.kept]
            return [each for each in kept if each.uuid.startswith(beginning) and each.split == play.split]

        return read

    def _model(self, *, weights: bool, fetch: bool) -> Path:
        from ajet.commands.recorded_run import find_recorded_model
        from ajet.engine.model_source import at_hand

        base = self._experiment.base
        lacking = not weights and at_hand(self._named, base=base, weights=False) is None
        if lacking and self._checkpoints is not None and (saved := tokenizer_in(self._checkpoints)) is not None:
            return saved
        otherwise = "--ids-only needs no weights" if weights else ""
        where = Path(self._address.shown)
        return find_recorded_model(
            self._named, base=base, record=where, fetch=fetch, weights=weights, otherwise=otherwise
        )


def _checkpoints_of(policy: Policy | None) -> Checkpoints | None:
    """The checkpoints that the announced weights lie among; None where that folder is not on this machine."""
    if policy is None or not policy.weights or not Path(policy.weights).is_dir():
        return None
    return Checkpoints(Path(policy.weights).parent)


def _version(policy: Policy | None) -> int | None:
    return None if policy is None else policy.told.get("version")


def _require_same_model(
    policy: Policy | None, experiment: Experiment, tokenizer: Any, address: Address, *, weights: bool
) -> None:
    """Raises UserError where the model here is not the one that the trainer told its samplers of."""
    from ajet.engine.models import tokenizer_fingerprint, weights_fingerprint

    if policy is None:
        return
    settings = experiment.ajet
    differing = []
    if policy.tokenizer and policy.tokenizer != tokenizer_fingerprint(tokenizer):
        differing.append("tokenizer")
    if policy.template and policy.template != template_of(settings, tokenizer):
        differing.append("chat template")
    if weights and policy.lineage and policy.lineage != weights_fingerprint(settings):
        differing.append("weights")
    if differing:
        raise UserError(
            f"The model here is not that of the run: other {' and '.join(differing)}.",
            where=str(settings.model.path),
            expected=f"the model that the trainer announced in {address.shown}",
            do="Put the same files there" + (", or leave the weights out: --ids-only." if weights else "."),
        )

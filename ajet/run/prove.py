"""`ajet prove`: recorded episodes derived a second time, token by token.

Invariant: what is printed as checked was checked: ids by rendering, extending, parsing, tracking and packing again;
log-probabilities by the trainer's own forward pass at the weights that sampled them. Where those weights are gone, it
says so step by step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from rich.console import Console

from ajet.context_tracker.packing import pack
from ajet.context_tracker.proof import Proof, WrongToken, compare, everything, prove, samples_of
from ajet.context_tracker.proof_lines import prove_rows
from ajet.record import Checkpoints
from ajet.record.checkpoints import checkpoints_folder
from ajet.record.episodes import episode_of
from ajet.record.files import read_rows
from ajet.record.progress import Progress
from ajet.run.proof_target import CONFIG, Target, find_target, step_of
from ajet.schema.call import Call
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.backbone.local.scorer import Scorer
    from ajet.config import AjetConfig, Experiment
    from ajet.schema.episode import Episode

TOLERANCE = {"float32": 0.01, "bfloat16": 1.5}
"""Nats by which engine and trainer may differ on an improbable token: what rounding explains, and no more. Measured on
20 steps of the quickstart: 3e-5 in float32, 1.2 in bfloat16."""
ROW_TOKENS = 4096
"""Tokens of a row that is computed at once, where the run's own rows are longer."""


@dataclass(slots=True)
class Play:
    """One episode file."""

    file: Path
    step: int
    split: str
    episodes: int = 0
    sampled: Counter[int] = field(default_factory=Counter)
    """Sampled tokens by the policy version that sampled them; -1 where an engine resumed across an update."""
    recomputed: int = 0


@dataclass(slots=True)
class Report:
    """What `ajet prove` found."""

    target: Target
    proof: Proof = field(default_factory=Proof)
    plays: list[Play] = field(default_factory=list)
    weights: dict[int, str] = field(default_factory=dict)
    """Version -> where the weights came from that its tokens were recomputed with."""
    tolerance: float | None = None
    computed_in: str = ""
    """Number format and device of the recomputation; empty without one."""
    why_not: str = ""
    """Why nothing was recomputed, if so."""


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
    from ajet.config import recorded_experiment
    from ajet.config.dotenv import load_project_dotenv

    target = find_target(named, root, steps)
    load_project_dotenv(record=target.run)
    experiment = recorded_experiment(target.run / CONFIG)
    report = Report(target)
    model = experiment.ajet.model.path
    if model is None:
        raise UserError(
            "This run names no model, so its tokens cannot be derived again.", where=str(target.run / CONFIG)
        )
    by_weights = not ids_only and experiment.ajet.backbone in ("debug", "local")
    experiment.ajet.model.path = str(_model(target.run, experiment, model, weights=by_weights, fetch=fetch))
    _prove_ids(report, experiment)
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
    elif experiment.ajet.backbone not in ("debug", "local"):
        report.why_not = f"the weights of a {experiment.ajet.backbone} run cannot be loaded here"
    else:
        _prove_logprobs(report, experiment, model, at_most, tolerance)
    return report


def _model(run: Path, experiment: Experiment, named: str, *, weights: bool, fetch: bool) -> Path:
    """The folder of the run's model; where no weights are needed and it is not here, a checkpoint's, whose tokenizer is
    the same."""
    from ajet.engine.model_source import at_hand
    from ajet.run.recorded_model import recorded_model

    if not weights and at_hand(named, base=experiment.base, weights=False) is None:
        folder = checkpoints_folder(run, experiment.ajet.trainer_common.checkpoint_base_dir)
        saved = [each.path for each in Checkpoints(folder).all() if (each.path / "tokenizer.json").is_file()]
        if saved:
            return saved[-1]
    otherwise = "--ids-only needs no weights" if weights else ""
    return recorded_model(named, base=experiment.base, record=run, fetch=fetch, weights=weights, otherwise=otherwise)


def prove_episode(episode: Episode, settings: AjetConfig, words: Any) -> Proof:
    """What an episode's record alone can prove. `words`: the run's renderer."""
    return prove(
        episode.calls,
        episode.messages,
        episode.tools,
        words.on_day(date.fromtimestamp(episode.started)),
        lines=episode.timelines,
        untrained=episode.untrained,
        ignore_tools=settings.context_tracker.timeline_merging_policy.ignore_tools,
        budget=settings.trainer_common.micro_batch_tokens,
        episode=episode.uuid,
    )


def _prove_ids(report: Report, experiment: Experiment) -> None:
    from ajet.engine.model_source import locate
    from ajet.engine.models import folder_of, load_image_tokens, load_tokenizer
    from ajet.run.assembly import renderer_of

    settings = experiment.ajet
    assert settings.model.path is not None
    source = locate(settings.model.path)
    words = renderer_of(settings, load_tokenizer(source), load_image_tokens(folder_of(source)))
    with Progress(Console(stderr=True)) as progress, progress.bar("ids", len(report.target.files), "files") as bar:
        for file in report.target.files:
            play = Play(file, *step_of(file))
            for episode in _episodes(report.target, file, report.proof.wrong):
                report.proof.add(prove_episode(episode, settings, words))
                play.episodes += 1
                for call in episode.calls:
                    play.sampled.update(_versions(call).tolist())
            report.plays.append(play)
            bar.advance()


def _prove_logprobs(
    report: Report, experiment: Experiment, model: str, at_most: int | None, tolerance: float | None
) -> None:
    """`model`: what a person calls the one that the run began with."""
    from ajet.backbone import open_scorer

    wanted = {version for play in report.plays for version in play.sampled if version >= 0}
    weights = _weights(report.target.run, experiment)
    if weights[0][0] is None:
        weights[0] = None, model
    chosen = {version: weights[version] for version in sorted(wanted & weights.keys())}
    plays = [(version, play) for version in chosen for play in report.plays if play.sampled[version]]
    with Progress(Console(stderr=True)) as progress, progress.bar("log-probabilities", len(plays), "files") as bar:
        for version, (checkpoint, name) in chosen.items():
            scorer = open_scorer(experiment, checkpoint)
            report.weights[version] = name
            report.computed_in = f"{scorer.dtype} on {scorer.device}"
            report.tolerance = TOLERANCE[scorer.dtype] if tolerance is None else tolerance
            for play in (play for other, play in plays if other == version):
                episodes = list(_episodes(report.target, play.file, []))[:at_most]
                play.recomputed += recompute(
                    report.proof, episodes, experiment.ajet, scorer, version=version, tolerance=report.tolerance
                )
                bar.advance()
            del scorer


def recompute(
    proof: Proof, episodes: Sequence[Episode], settings: AjetConfig, scorer: Scorer, *, version: int, tolerance: float
) -> int:
    """Hold what policy `version` sampled to the trainer's forward pass, packed as for training; answers how many
    tokens that were."""
    groups: dict[str, int] = {}
    lines, samples = [], []
    for episode in episodes:
        group = groups.setdefault(episode.task.task_id, len(groups))
        made = everything(episode.calls)
        lines += [(episode, line) for line in made]
        samples += samples_of(made, episode.uuid, group)
    rows = pack(
        samples,
        min(settings.trainer_common.micro_batch_tokens, ROW_TOKENS),
        share_prefixes=scorer.shares_prefixes,
    )
    wrong = prove_rows(samples, rows)
    proof.rows += len(rows)
    proof.wrong += wrong
    if wrong:
        return 0
    truncates = settings.rollout.top_p < 1.0 or settings.rollout.top_k > 0
    shaped = {call.temperature for episode in episodes for call in episode.calls if call.trained} - {0.0, 1.0}
    count = 0
    for temperature in (1.0, *(() if truncates else sorted(shaped))):
        computed = [np.zeros(sample.timeline.ids.size, np.float32) for sample in samples]
        for row in rows:
            values = scorer.logprobs(row, temperature)
            for index in np.unique(row.targets.sample).tolist():
                mine = row.targets.sample == index
                computed[index][row.targets.offset[mine]] = values[mine]
        for (episode, line), found in zip(lines, computed, strict=True):
            at = at_version(episode.calls, line.spans, line.ids.size, version)
            if temperature != 1.0:
                at &= _at_temperature(episode.calls, line.spans, line.ids.size, temperature)
                compare(proof, episode.calls, line, found, at, tolerance=tolerance, episode=episode.uuid, shaped=True)
                continue
            compare(proof, episode.calls, line, found, at, tolerance=tolerance, episode=episode.uuid)
            count += int(at.sum())
    return count


def _episodes(target: Target, file: Path, wrong: list[WrongToken]) -> Iterator[Episode]:
    """The episodes of a file that are meant. One whose record lacks a call cannot be read: it goes into `wrong`."""
    arrays = file.with_suffix(".bin")
    opened: BinaryIO = arrays.open("rb") if arrays.exists() else BytesIO()
    with opened as blobs:
        for number, row in enumerate(read_rows(file), 1):
            try:
                meant, lacking = row["uuid"].startswith(target.episode), _lacking(row)
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise UserError("A line of the record is no episode.", where=f"{file}:{number}") from error
            if not meant:
                continue
            if lacking is None:
                yield episode_of(row, blobs, f"{file}:{number}")
            else:
                wrong.append(WrongToken(row["uuid"], lacking, 0, "this call is missing from the record"))


def _lacking(row: dict[str, Any]) -> int | None:
    """The first call that a recorded line refers to and does not hold."""
    calls, lines = row["calls"], row["timelines"]
    apart = next((at for at, call in enumerate(calls) if call["index"] != at), None)
    if apart is not None:
        return apart
    named = [span[0] for line in lines for span in line["spans"]] + [line["leaf"] for line in lines]
    return len(calls) if max(named, default=0) >= len(calls) and named else None


def _versions(call: Call) -> np.ndarray[Any, Any]:
    """[R] the policy version of each token of a reply; -1 where it is not one."""
    versions = np.full(call.response_ids.size, -1, np.int64)
    for run in call.versions:
        versions[run.first :] = run.low if run.low == run.high else -1
    return versions


def at_version(calls: Sequence[Call], spans: Sequence[Any], size: int, version: int) -> np.ndarray[Any, Any]:
    """[T] where a timeline with these spans has tokens that policy `version` sampled."""
    at = np.zeros(size, np.bool_)
    for span in spans:
        at[span.start : span.stop] = _versions(calls[span.call])[: span.stop - span.start] == version
    return at


def _at_temperature(calls: Sequence[Call], spans: Sequence[Any], size: int, temperature: float) -> np.ndarray[Any, Any]:
    at = np.zeros(size, np.bool_)
    for span in spans:
        call = calls[span.call]
        held = bool(call.extra.get("constrained"))  # drawn from what a schema left of the distribution
        at[span.start : span.stop] = call.trained and call.temperature == temperature and not held
    return at


def _weights(run: Path, experiment: Experiment) -> dict[int, tuple[Path | None, str]]:
    """Policy version -> (checkpoint, how a person calls it). None: the model that the run began with."""
    from ajet.backbone import saved_version

    found: dict[int, tuple[Path | None, str]] = {0: (None, str(experiment.ajet.model.path))}
    folder = checkpoints_folder(run, experiment.ajet.trainer_common.checkpoint_base_dir)
    for checkpoint in Checkpoints(folder).all():
        found[saved_version(checkpoint.path)] = checkpoint.path, f"checkpoints/{checkpoint.path.name}"
    return found
